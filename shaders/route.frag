#version 300 es
// The experts of each row, by the logits of its router (common/route.glsl): texel i of a slot of the output is (expert,
// weight, 0, 0) of the row's choice number i. With SHARED every row has one more expert as its last choice, or USED = 0 as
// its only one, weighted by the sigmoid of logit EXPERTS, and with the row as index. With scales each
// expert has a factor. Row r of logits and output is in slot r, in blocks.
#include "common/block_pass.glsl"
#define LOGITS_LAYOUT LOGITS_TILES, LOGITS_PITCH, LOGITS_SLOT_STEP, LOGITS_BLOCK_STEP, LOGITS_COLUMNS
uniform sampler2D logits;
#define ROUTED(t) FETCH(logits, IN_LOGITS(texel_position(slot, t, LOGITS_LAYOUT)), ivec2(LOGITS_WIDTH, LOGITS_HEIGHT))
#ifdef BIASED
uniform sampler2D bias;
#define BIAS(t) FETCH(bias, ivec2(t, 0), ivec2(BIAS_WIDTH, BIAS_HEIGHT))
#endif
#ifdef SCALES_WIDTH
uniform sampler2D scales;
#endif
int slot;
#include "common/route.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    slot = out_slot;
    int rank = 16 * out_block + out_lane;
    vec4 scores;
    int expert = choice_of(min(rank, USED - 1), scores);
    y = rank < USED ? vec4(float(expert), weight_of(scores.x, scores), 0.0, 0.0) : vec4(0.0);
#ifdef SCALES_WIDTH
    y.y *= FETCH(scales, ivec2(expert >> 2, 0), ivec2(SCALES_WIDTH, SCALES_HEIGHT))[expert & 3];
#endif
#if SHARED
    // Below -88 exp overflows, and the weight is less than any normal number.
    float last = ROUTED(EXPERTS >> 2)[EXPERTS & 3];
    if (rank == USED) y = vec4(float(EXPERTS), last < -88.0 ? 0.0 : 1.0 / (1.0 + exp(-last)), float(slot), 0.0);
#endif
}

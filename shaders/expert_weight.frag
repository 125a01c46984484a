#version 300 es
// The weight of one expert in each row, by the router's logits (common/route.glsl); 0 if the row does not choose it. y [rows, 1].
#include "common/flat.glsl"
uniform sampler2D logits;
uniform int expert;
#ifdef BIASED
uniform sampler2D bias;
#define BIAS(t) TEXEL(bias, t, BIAS_WIDTH, BIAS_HEIGHT)
#endif
int row;
#define ROUTED(t) TEXEL(logits, (row * LOGITS_TEXELS + (t)), LOGITS_WIDTH, LOGITS_HEIGHT)
#include "common/route.glsl"
layout(location = 0) out vec4 y;

void main() {
    row = output_place().x;
    vec4 scores;
    int last = choice_of(USED - 1, scores);
    float logit = ROUTED(expert >> 2)[expert & 3];
    bool chosen = IN_KEPT_GROUP(expert) && !comes_after(ranks_of(expert >> 2)[expert & 3], expert, scores.w, last);
    y = vec4(chosen ? weight_of(logit, scores) : 0.0, 0.0, 0.0, 0.0);
}

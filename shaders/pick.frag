#version 300 es
// The best 16 candidates for the next token: lane n of the block reads the texels n, n + 16, … of the logits and writes
// (score, id, 0, whether its logit is 0) of the largest score, in ties the lowest id. The score of a token is its logit, or with
// noise = 1, logit · inverse_temperature + Gumbel noise, whose maximum is a draw from the softmax.
// With ROWS there are many rows of logits, row ROWS · slot + n in slot `slot` of texture n. Each slot of the output belongs
// to one row, and the table rows has the noise and temperature of its choice.
#include "common/block_pass.glsl"
#include "common/noise.glsl"
#define LOGITS_LAYOUT LOGITS_TILES, LOGITS_PITCH, LOGITS_SLOT_STEP, LOGITS_BLOCK_STEP, LOGITS_COLUMNS
#ifdef ROWS
#include "common/each_row.glsl"
#include "common/row_info.glsl"
EACH_ROW(DECLARE_INPUT)
#else
uniform sampler2D logits;
uniform float noise;
uniform float inverse_temperature;
uniform uint noise_key;
#endif
#define UNROLL 8  // texels to fetch together, to wait for memory once
#define LEAST -3.4e38
#define LOGITS_SIZE ivec2(LOGITS_WIDTH, LOGITS_HEIGHT)
layout(location = 0) out vec4 y;

// The best so far, or a better one among four tokens from `token` on.
vec2 better(vec2 best, vec4 score, int token) {
    for (int i = 0; i < 4; i++) {
        if (score[i] > best.x && token + i < VOCAB) best = vec2(score[i], float(token + i));
    }
    return best;
}

// Scans blocks [first, end); texels after the last token have none.
#define LOOK(X, first, end, SCORE) \
    for (int start = first; start < end; start += UNROLL) { \
        vec4 v[UNROLL]; \
        for (int j = 0; j < UNROLL; j++) { \
            int block = min(start + j, LOGITS_BLOCKS - 1); \
            ivec2 texel = block_origin(slot, block, LOGITS_LAYOUT) + offset; \
            v[j] = FETCH(X, IN_LOGITS(texel), LOGITS_SIZE); \
        } \
        for (int j = 0; j < UNROLL; j++) { \
            int token = 64 * (start + j) + 4 * out_lane; \
            best = better(best, SCORE, token); \
        } \
    }
#define NOISY(v) \
    v * inverse_temperature + vec4(gumbel(uint(token), noise_key), gumbel(uint(token + 1), noise_key), \
                                   gumbel(uint(token + 2), noise_key), gumbel(uint(token + 3), noise_key))

void main() {
    locate();
    ivec2 offset = lane_offset(out_lane);
#ifdef ROWS
    uvec4 choice = ROW_TEXEL(out_slot, 1);
    uint noise_key = choice.x;
    float inverse_temperature = uintBitsToFloat(choice.y), noise = float(choice.z & 1u);
    int slot = out_slot / ROWS;
#else
    const int slot = 0;
#endif
    vec2 best = vec2(LEAST, 0.0);
    vec4 own;  // the texel of the row's logits that is fetched last
    // A separate loop for each case, which llvmpipe skips; in a condition it would compute both sides.
    int plain = noise > 0.0 ? 0 : LOGITS_BLOCKS;
#ifdef ROWS
#define FETCH_OWN(n, X, R, Y, V, A, B, C, D, E, F, S) if (out_slot % ROWS == n) own = FETCH(X, IN_LOGITS(texel), LOGITS_SIZE);
#define LOOK_PLAIN(n, X, R, Y, V, A, B, C, D, E, F, S) LOOK(X, out_slot % ROWS == n ? 0 : plain, plain, v[j])
    EACH_ROW(LOOK_PLAIN)
#if ROWS == 1
    LOOK(x0, plain, LOGITS_BLOCKS, NOISY(v[j]))
#else
    for (int block = plain; block < LOGITS_BLOCKS; block++) {
        ivec2 texel = block_origin(slot, block, LOGITS_LAYOUT) + offset;
        int token = 64 * block + 4 * out_lane;
        EACH_ROW(FETCH_OWN)
        best = better(best, NOISY(own), token);
    }
#endif
#else
    LOOK(logits, 0, plain, v[j])
    LOOK(logits, plain, LOGITS_BLOCKS, NOISY(v[j]))
#endif
    int chosen = int(best.y);
    ivec2 texel = block_origin(slot, chosen / 64, LOGITS_LAYOUT) + offset;
#ifdef ROWS
    EACH_ROW(FETCH_OWN)
#else
    own = FETCH(logits, IN_LOGITS(texel), LOGITS_SIZE);
#endif
    y = vec4(best, 0.0, best.x > LEAST && own[chosen & 3] == 0.0 ? 1.0 : 0.0);
}

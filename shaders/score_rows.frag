#version 300 es
// The log-probability of each row's target, in parts: lane l of a row's block reads the texels l, l + 16, … of the row's
// logits and writes (largest logit, sum of exp(logit - largest), id of the largest, logit of the target or -3.4e38).
// Row ROWS · slot + n is in slot `slot` of texture n, and its result in slot `slot` of target n.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_TARGET)

#define LEAST -3.4e38
#define DECLARE(n, X, R, Y, V, A, B, C, D, E, F, S) \
    vec4 V; float S = 0.0; Y = vec4(LEAST, 0.0, 0.0, LEAST); \
    int R = int(ROW_TEXEL(ROWS * out_slot + n, 0).w);
#define KNOWN(V) mix(vec4(LEAST), V, lessThan(token + next, ivec4(VOCAB)))
#define LOGITS(X) KNOWN(FETCH(X, from, X_SIZE))
#define LARGEST(n, X, R, Y, V, A, B, C, D, E, F, S) \
    V = LOGITS(X); \
    for (int i = 0; i < 4; i++) { \
        if (V[i] > Y.x) { Y.x = V[i]; Y.z = float(token + i); } \
        if (token + i == R) Y.w = V[i]; \
    }
#define ADD(n, X, R, Y, V, A, B, C, D, E, F, S) V = exp(LOGITS(X) - Y.x); S += (V.x + V.y) + (V.z + V.w);
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) Y.y = Y.x > LEAST ? S : 0.0;

void main() {
    locate();
    ivec2 offset = lane_offset(out_lane);
    ivec4 next = ivec4(0, 1, 2, 3);
    EACH_ROW(DECLARE)
    for (int block = 0; block < X_BLOCKS; block++) {
        ivec2 from = block_origin(out_slot, block, X_LAYOUT) + offset;
        int token = 64 * block + 4 * out_lane;
        EACH_ROW(LARGEST)
    }
    for (int block = 0; block < X_BLOCKS; block++) {
        ivec2 from = block_origin(out_slot, block, X_LAYOUT) + offset;
        int token = 64 * block + 4 * out_lane;
        EACH_ROW(ADD)
    }
    EACH_ROW(FINISH)
}

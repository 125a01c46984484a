#version 300 es
// 1 / sqrt(mean(x²) + EPS) of each of the ROWS rows of a slot, the mean over DIM inputs. A slot of the output is one block:
// quad q has rows 4q to 4q + 3, and the last digits differ between members of a quad as in shaders/gemm.frag, where each
// fragment adds up its quad's sums itself; members of other quads find their digits by their number.
// With CENTRED the variance replaces the mean square, and quads 2 and 3 hold the means in the same order.
// Row ROWS · slot + n of x is in slot `slot` of texture n.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 y;

#define DECLARE_SUM(n, X, R, Y, V, A, B, C, D, E, F, S) vec2 S = vec2(0.0);
#define SQUARE(n, X, R, Y, V, A, B, C, D, E, F, S) \
    { vec4 v = FETCH(X, from, X_SIZE); S += vec2(dot(v, v), (v.x + v.y) + (v.z + v.w)); }
#define KEEP(n, S) norm[n] = S.x; mean[n] = S.y / float(DIM);
#if QUAD
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) sums = quad_sum(vec4(S, S), out_lane).xy; KEEP(n, sums)
#else
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) KEEP(n, S)
#endif

void main() {
    locate();
    EACH_ROW(DECLARE_SUM)
#if GROUPED
    // Four inputs at a time, in the order of a product over groups of 32; each member of a quad sums every fourth group.
    for (int turn = 0; turn < TURNS; turn++) {
#if QUAD
        int group = 4 * (turn >> 3) + (out_lane & 3), t = 4 * (turn & 1) + ((turn >> 1) & 3);
#else
        int group = turn >> 3, t = 4 * (turn & 1) + ((turn >> 1) & 3);
#endif
        if (group < GROUPS) {
            ivec2 from = block_origin(out_slot, group >> 1, X_LAYOUT) +
                         ivec2(2 * (t >> 2) + (t & 1), 2 * (group & 1) + ((t >> 1) & 1));
            EACH_ROW(SQUARE)
        }
    }
#else
    for (int step = 0; step < STEPS; step++) {
        ivec2 corner = block_origin(out_slot, step >> 2, X_LAYOUT) + 2 * ivec2(step & 1, (step >> 1) & 1);
#if QUAD
        ivec2 from = corner + ivec2(out_lane & 1, (out_lane >> 1) & 1);
        EACH_ROW(SQUARE)
#else
        for (int a = 0; a < 4; a++) {
            ivec2 from = corner + ivec2(a & 1, a >> 1);
            EACH_ROW(SQUARE)
        }
#endif
    }
#endif
    float norm[8] = float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0), mean[8] = norm;
    vec2 sums;
    EACH_ROW(FINISH)
    for (int n = 0; n < ROWS; n++) {
        float square = norm[n] / float(DIM);
#if CENTRED
        square = max(square - mean[n] * mean[n], 0.0);
#endif
        norm[n] = inversesqrt(square + float(EPS));
    }
    int quad = out_lane >> 2;
    vec4 low = vec4(norm[0], norm[1], norm[2], norm[3]), high = vec4(norm[4], norm[5], norm[6], norm[7]);
#if CENTRED
    if (quad >= 2) {
        low = vec4(mean[0], mean[1], mean[2], mean[3]);
        high = vec4(mean[4], mean[5], mean[6], mean[7]);
        quad -= 2;
    }
#endif
    y = out_block > 0 || 4 * quad >= ROWS ? vec4(0.0) : quad == 0 ? low : high;
}

#version 300 es
// 1 / sqrt(mean(x²) + EPS) of each of the ROWS rows of a slot, the mean over DIM inputs. A slot of the output is one block:
// quad q has rows 4q to 4q + 3, and each member of a quad its own last digits of them, as in shaders/gemv.frag, where
// each fragment adds up its quad's sums by itself; members of other quads find theirs by their number.
// Row ROWS · slot + n of x lies in slot `slot` of texture n.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 y;

#define DECLARE_SUM(n, X, R, Y, V, A, B, C, D, E, S) float S = 0.0;
#define SQUARE(n, X, R, Y, V, A, B, C, D, E, S) \
    { vec4 v = FETCH(X, from, ivec2(X_WIDTH, X_HEIGHT)); S += dot(v, v); }
#if QUAD
#define FINISH(n, X, R, Y, V, A, B, C, D, E, S) norm[n] = quad_sum(vec4(S), at.lane).x;
#else
#define FINISH(n, X, R, Y, V, A, B, C, D, E, S) norm[n] = S;
#endif

void main() {
    Place at = output_place();
    EACH_ROW(DECLARE_SUM)
    for (int step = 0; step < STEPS; step++) {
        ivec2 corner = block_origin(at.slot, step >> 2, X_PLACES) + 2 * ivec2(step & 1, (step >> 1) & 1);
#if QUAD
        ivec2 from = corner + ivec2(at.lane & 1, (at.lane >> 1) & 1);
        EACH_ROW(SQUARE)
#else
        for (int a = 0; a < 4; a++) {
            ivec2 from = corner + ivec2(a & 1, a >> 1);
            EACH_ROW(SQUARE)
        }
#endif
    }
    float norm[8] = float[8](0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0);
    EACH_ROW(FINISH)
    for (int n = 0; n < ROWS; n++) norm[n] = inversesqrt(norm[n] / float(DIM) + float(EPS));
    vec4 low = vec4(norm[0], norm[1], norm[2], norm[3]), high = vec4(norm[4], norm[5], norm[6], norm[7]);
    int quad = at.lane >> 2;
    y = at.block > 0 || 4 * quad >= ROWS ? vec4(0.0) : quad == 0 ? low : high;
}

#version 300 es
// The end of a branch of a layer whose output is normalised before it is added to the stream:
//   y[r] = x[r] / sqrt(mean(x[r]²) + EPS) · gain + residual[r], the mean over DIM numbers.
// Without RESIDUAL blending adds to y, or with ROUNDED y[r] is rounded to 8 bits (common/rounded.glsl). Row ROWS · slot + n of x, residual and y is in slot `slot` of texture n,
// in blocks; gain has DIM numbers in a row. With QUAD the four fragments of a quad share the sum.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
#ifdef RESIDUAL
EACH_ROW(DECLARE_SECOND)
#endif
uniform sampler2D gain;
EACH_ROW(DECLARE_TARGET)

#ifdef ROUNDED
#include "common/rounded.glsl"
#define GAIN_AT(column) FETCH(gain, ivec2(min(column, GAIN_WIDTH - 1), 0), ivec2(GAIN_WIDTH, 1))
#define DECLARE_SUM(n, X, R, Y, V, A, B, C, D, E, F, S) float S = 0.0, A = 0.0;
#define SQUARE(n, X, R, Y, V, A, B, C, D, E, F, S) \
    { vec4 v = FETCH(X, IN_X(from), X_SIZE); S += dot(v, v); A = max(A, largest_of(v * GAIN_AT(4 * step + a))); }
#else
#define DECLARE_SUM(n, X, R, Y, V, A, B, C, D, E, F, S) float S = 0.0;
#define SQUARE(n, X, R, Y, V, A, B, C, D, E, F, S) { vec4 v = FETCH(X, IN_X(from), X_SIZE); S += dot(v, v); }
#endif
#if QUAD
#define WHOLE_SUM(S) quad_sum(vec4(S), out_lane).x
#else
#define WHOLE_SUM(S) S
#endif
#ifdef ROUNDED
#define ROUND(x, largest) rounded(x, largest)
#else
#define ROUND(x, largest) x
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    S = inversesqrt(WHOLE_SUM(S) / float(DIM) + float(EPS)); \
    Y = ROUND(FETCH(X, IN_X(own), X_SIZE) * S * factor, A * S) AND_RESIDUAL(R);

void main() {
    locate();
    EACH_ROW(DECLARE_SUM)
    for (int step = 0; step < 4 * X_BLOCKS; step++) {
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
    vec4 factor = FETCH(gain, ivec2(min(16 * out_block + out_lane, GAIN_WIDTH - 1), 0), ivec2(GAIN_WIDTH, 1));
    ivec2 own = block_origin(out_slot, out_block, X_LAYOUT) + lane_offset(out_lane);
    EACH_ROW(FINISH)
}

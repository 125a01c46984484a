#version 300 es
// One row times a matrix: y[n] = sum over k of x[k] · weight[k, n], or with TRANSPOSED weight[n, k].
// The four fragments of a quad share k: each sums every fourth texel of x (or group of 32) for all sixteen columns of the
// quad, so that a texel of x is fetched once for sixteen columns. Finally they exchange their sums through derivatives
// (common/quad.glsl), which must be exact. With BLENDED each instance of the draw runs one of several parts of k,
// PART_UNITS steps of the loop, and blending adds the parts.
// x [1, K] and y [1, N] four elements a texel; with TRANSPOSED weight is in any format (common/weights.glsl).
#include "common/product.glsl"
#include "common/quad.glsl"
uniform sampler2D x;
#ifdef TRANSPOSED
#include "common/weights.glsl"
#else
uniform sampler2D weight;
#endif
#ifdef BLENDED
flat in int part;
#endif
layout(location = 0) out vec4 y;

#define X(k) TEXEL(x, k, X_WIDTH, X_HEIGHT)
#define W(k, i) TEXEL(weight, (4 * (k) + i) * WEIGHT_TEXELS + column, WEIGHT_WIDTH, WEIGHT_HEIGHT)

void main() {
    ivec2 texel = ivec2(gl_FragCoord.xy), corner = texel - (texel & 1);
    int lane = (texel.x & 1) + 2 * (texel.y & 1);
    vec4 sum[4];
    for (int i = 0; i < 4; i++) sum[i] = vec4(0.0);
#ifdef BLENDED
    int first = part * PART_UNITS, end = min(first + PART_UNITS, UNITS);
#else
    const int first = 0, end = UNITS;
#endif
    // Lane 0 takes the most steps and is inside the triangle in every quad, so no fragment's loop is cut short
    // (common/quad.glsl).
    for (int unit = first + lane; unit < end; unit += 4) {
#ifdef TRANSPOSED
        for (int i = 0; i < 4; i++) {
            int column = (corner.y + (i >> 1)) * OUT_WIDTH + corner.x + (i & 1);
            ivec4 rows = min(columns_of(column), ivec4(OUT_COLS - 1));
            Group g0 = group_of(rows.x, unit), g1 = group_of(rows.y, unit), g2 = group_of(rows.z, unit), g3 = group_of(rows.w, unit);
            for (int j = 0; j < GROUP_TEXELS; j++) {
                int k = unit * GROUP_TEXELS + j;
#ifdef RAGGED
                if (k >= X_TEXELS) break;
#endif
                vec4 v = X(k);
                sum[i] += vec4(dot(v, group_weights(g0, j)), dot(v, group_weights(g1, j)), dot(v, group_weights(g2, j)),
                               dot(v, group_weights(g3, j)));
            }
        }
#else
        vec4 v = X(unit);
        for (int i = 0; i < 4; i++) {
            int column = min((corner.y + (i >> 1)) * OUT_WIDTH + corner.x + (i & 1), OUT_TEXELS - 1);
            sum[i] += (v.x * W(unit, 0) + v.y * W(unit, 1)) + (v.z * W(unit, 2) + v.w * W(unit, 3));
        }
#endif
    }
    vec4 total = quad_share(sum, lane);
    ivec2 at = output_place();
#if !defined(TRANSPOSED) && K % 4
    // Sum the last rows of weight one by one, since 0 · infinity is NaN.
    int column = min(at.y, OUT_TEXELS - 1);
    vec4 last = X(UNITS);
    total += last.x * W(UNITS, 0);
#if K % 4 > 1
    total += last.y * W(UNITS, 1);
#endif
#if K % 4 > 2
    total += last.z * W(UNITS, 2);
#endif
#endif
#ifdef BLENDED
    y = trimmed(total, at.y, OUT_COLS);
#else
    y = finished(total, ivec2(0, at.y));
#endif
}

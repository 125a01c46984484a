#version 300 es
// Products of matrices: y[b, m, n] = sum over k of x[b, m, k] · weight[b, k, n], or with TRANSPOSED weight[b, n, k].
// A fragment computes four columns n of ROWS rows m, row ROWS · g + i of a matrix in target i, so each fetched weight serves
// all rows; shaders/finish.frag joins the targets. With one row and all of k the fragment finishes the sums itself
// (common/product.glsl).
// A fragment may sum over one of PARTS parts of k. With BLENDED each instance of the draw is a part, and blending adds the
// parts; otherwise they are stacked, PART_ROWS rows each.
// x and y four elements a texel (common/flat.glsl); with TRANSPOSED weight is in any format (common/weights.glsl).
#include "common/product.glsl"
#include "common/each_row.glsl"
uniform sampler2D x;
#ifdef TRANSPOSED
#include "common/weights.glsl"
#else
uniform sampler2D weight;
#endif
#ifdef BLENDED
flat in int part;
#endif
EACH_ROW(DECLARE_TARGET)

#define BEGIN(n, X, R, Y, V, A, B, C, D, E, F, S) \
    vec4 A = vec4(0.0); \
    int S = (X_BATCH(batch) * M + min(row + n, M - 1)) * X_TEXELS;
#define FETCH_X(n, X, R, Y, V, A, B, C, D, E, F, S) vec4 V = TEXEL(x, S + k, X_WIDTH, X_HEIGHT);
#define ADD_ROWS(n, X, R, Y, V, A, B, C, D, E, F, S) A += vec4(dot(V, w0), dot(V, w1), dot(V, w2), dot(V, w3));
#define ADD_COLUMNS(n, X, R, Y, V, A, B, C, D, E, F, S) A += (V.x * w0 + V.y * w1) + (V.z * w2 + V.w * w3);
#define STORE(n, X, R, Y, V, A, B, C, D, E, F, S) Y = A;
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) Y = finished(A, at);

void main() {
    ivec2 at = output_place();
    int group = at.x;
#if PARTS > 1 && !defined(BLENDED)
    int part = group / PART_ROWS;
    group = group % PART_ROWS;
#elif PARTS == 1
    const int part = 0;
#endif
    int batch = group / ROW_GROUPS, row = ROWS * (group % ROW_GROUPS);
    EACH_ROW(BEGIN)
#ifdef TRANSPOSED
    int first = WEIGHT_BATCH(batch) * OUT_COLS;
    ivec4 rows = first + min(columns_of(at.y), ivec4(OUT_COLS - 1));
    int unit = part * PART_UNITS, end = min(unit + PART_UNITS, UNITS);
    for (;;) {
        Group g0 = group_of(rows.x, unit), g1 = group_of(rows.y, unit), g2 = group_of(rows.z, unit), g3 = group_of(rows.w, unit);
        for (int j = 0; j < GROUP_TEXELS; j++) {
            int k = unit * GROUP_TEXELS + j;
#ifdef RAGGED
            if (k >= X_TEXELS) break;
#endif
            vec4 w0 = group_weights(g0, j), w1 = group_weights(g1, j), w2 = group_weights(g2, j), w3 = group_weights(g3, j);
            EACH_ROW(FETCH_X)
            EACH_ROW(ADD_ROWS)
        }
        unit++;
        if (unit >= end) break;
    }
#else
    int first = WEIGHT_BATCH(batch) * K * WEIGHT_TEXELS + at.y;
#define W(i) TEXEL(weight, first + (4 * k + i) * WEIGHT_TEXELS, WEIGHT_WIDTH, WEIGHT_HEIGHT)
    int k = part * PART_UNITS, end = min(k + PART_UNITS, UNITS);
#if UNITS > 0
    for (;;) {
        vec4 w0 = W(0), w1 = W(1), w2 = W(2), w3 = W(3);
        EACH_ROW(FETCH_X)
        EACH_ROW(ADD_COLUMNS)
        k++;
        if (k >= end) break;
    }
#endif
#if K % 4
    if (part == PARTS - 1) {
        // Sum the last rows of weight one by one: rows of another matrix may follow, and 0 · infinity is NaN.
        k = UNITS;
        vec4 w0 = W(0), w1 = vec4(0.0), w2 = vec4(0.0), w3 = vec4(0.0);
#if K % 4 > 1
        w1 = W(1);
#endif
#if K % 4 > 2
        w2 = W(2);
#endif
        EACH_ROW(FETCH_X)
        EACH_ROW(ADD_COLUMNS)
    }
#endif
#endif
#if ROWS == 1 && PARTS == 1
    EACH_ROW(FINISH)
#else
    EACH_ROW(STORE)
#endif
}

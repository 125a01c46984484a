#version 300 es
// The gradient of an embedding table, without blending: each texel of the table scans all ids for its row, adds their
// gradients in order, and counts the added elements. NaN and infinities are skipped.
// With BEFORE the sums begin at those of a table instead of 0.
// ids [IDS_ROWS, IDS_COLS]; grad [ids, columns]; sums, counts, before [vocabulary, columns].
#include "common/flat.glsl"
#include "common/gradient.glsl"
uniform isampler2D ids;
#if BEFORE
uniform sampler2D before;
#endif
layout(location = 0) out vec4 sums;
layout(location = 1) out vec4 counts;

void add(bool same, int number, int texel) {
    if (!same) return;
    vec4 elements, finite;
    gradient(number * GRAD_TEXELS + texel, elements, finite);
    sums += elements;
    counts += finite;
}

void main() {
    ivec2 at = output_place();
    sums = counts = vec4(0.0);
#if BEFORE
    sums = TEXEL(before, at.x * BEFORE_TEXELS + at.y, BEFORE_WIDTH, BEFORE_HEIGHT);
#endif
    for (int row = 0; row < IDS_ROWS; row++) {
        for (int texel = 0; texel < IDS_TEXELS; texel++) {
            ivec4 four = TEXEL(ids, row * IDS_TEXELS + texel, IDS_WIDTH, IDS_HEIGHT);
            ivec4 columns = columns_of(texel);
            bvec4 same = bvec4(ivec4(equal(four, ivec4(at.x))) * ivec4(lessThan(columns, ivec4(IDS_COLS))));
            if (any(same)) {
                int number = row * IDS_COLS + columns.x;
                add(same.x, number, at.y);
                add(same.y, number + 1, at.y);
                add(same.z, number + 2, at.y);
                add(same.w, number + 3, at.y);
            }
        }
    }
}

#version 300 es
// y = the concatenation of PARTS tensors: along the columns, where input n fills SIZEn columns from STARTn on; or with
// ALONG_ROWS along the rows, where it fills SIZEn of every PERIOD rows from STARTn on. Floats, or with WHOLE integers.
#include "common/flat.glsl"
#include "common/elements.glsl"
#include "common/each_input.glsl"
#define DECLARE(X, TEXELS, WIDTH, HEIGHT, START, SIZE) uniform SAMPLER X;
EACH_INPUT(DECLARE)
layout(location = 0) out ELEMENTS y;

#ifdef ALONG_ROWS
void main() {
    ivec2 at = output_place();
    int group = int(uint(at.x) / uint(PERIOD)), row = int(uint(at.x) % uint(PERIOD));
    ELEMENTS v = ELEMENTS(0);
#define TAKE(X, TEXELS, WIDTH, HEIGHT, START, SIZE) \
    if (row >= START && row < START + SIZE) v = TEXEL(X, (group * SIZE + row - START) * TEXELS + at.y, WIDTH, HEIGHT);
    EACH_INPUT(TAKE)
    y = v;
}
#else
// The values of an input, whose columns begin at START, in four columns of y.
ELEMENTS shifted(SAMPLER x, int first, int width, int height, int shift) {
    return joined(TEXEL(x, first, width, height), TEXEL(x, first + 1, width, height), shift);
}

// v from column `start` on, y before it.
ELEMENTS behind(ELEMENTS y, ELEMENTS v, ivec4 columns, int start) {
    bvec4 later = greaterThanEqual(columns, ivec4(start));
    return ELEMENTS(later.x ? v.x : y.x, later.y ? v.y : y.y, later.z ? v.z : y.z, later.w ? v.w : y.w);
}

void main() {
    ivec2 at = output_place();
    ivec4 columns = columns_of(at.y);
    ELEMENTS v = ELEMENTS(0);
#define TAKE(X, TEXELS, WIDTH, HEIGHT, START, SIZE) \
    if (columns.w >= START && columns.x < START + SIZE) v = behind( \
        v, shifted(X, at.x * TEXELS + at.y - (START + 3) / 4, WIDTH, HEIGHT, (4 - START % 4) % 4), columns, START);
    EACH_INPUT(TAKE)
    y = trimmed(v, at.y, OUT_COLS);
}
#endif

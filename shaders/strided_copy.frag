#version 300 es
// y[r, c] = x at (row_offset, col_offset) + walked(r) + across(c): any transposition, slice, expansion or split of heads.
// The columns are runs of RUN_SIZE elements: a step within a run adds (RUN_A, RUN_B), a step between runs (RUNS_A,
// RUNS_B); without RUN_SIZE they are one run. With FETCHES 1 the four elements of a texel of y are one texel of x, with 2
// they are consecutive in a row of x, with 4 they are anywhere.
// TO_FLOAT: integers become floats. TO_HALF: floats are rounded for a target of float16.
#include "common/flat.glsl"
#include "common/elements.glsl"
#include "common/strided.glsl"
#include "common/half.glsl"
uniform SAMPLER x;
uniform int row_offset, col_offset;
#if defined(WHOLE) && !defined(TO_FLOAT)
layout(location = 0) out ivec4 y;
#else
layout(location = 0) out vec4 y;
#endif

#define SOURCE(row, texel) TEXEL(x, (row) * X_TEXELS + (texel), X_WIDTH, X_HEIGHT)

ivec2 across(int col) {
#ifdef RUN_SIZE
    uint number = uint(col);
    return int(number % uint(RUN_SIZE)) * ivec2(RUN_A, RUN_B) + int(number / uint(RUN_SIZE)) * ivec2(RUNS_A, RUNS_B);
#else
    return col * ivec2(RUN_A, RUN_B);
#endif
}

ELEMENT element(ivec2 from) {
    return picked(SOURCE(from.x, from.y >> 2), from.y);
}

void main() {
    ivec2 at = output_place();
    ivec2 from = ivec2(row_offset, col_offset) + walked(at.x);
    int col = 4 * at.y;
#if FETCHES == 4
    ELEMENT first = element(from + across(col)), second = element(from + across(col + 1));
    ELEMENTS v = ELEMENTS(first, second, element(from + across(col + 2)), element(from + across(col + 3)));
#else
    from += across(col);
    ELEMENTS v = SOURCE(from.x, from.y >> 2);
#if FETCHES == 2
    v = joined(v, SOURCE(from.x, (from.y >> 2) + 1), from.y & 3);
#endif
#endif
    v = trimmed(v, at.y, OUT_COLS);
#ifdef TO_FLOAT
    y = vec4(v);
#else
    y = v;
#endif
#ifdef TO_HALF
    y = vec4(nearest_half(y.x), nearest_half(y.y), nearest_half(y.z), nearest_half(y.w));
#endif
}

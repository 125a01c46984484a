#version 300 es
// y[index] = value, in place. On each axis of y, of size EDGE, the index selects SIZE elements, STEP apart, from a start on; a
// step along them adds (A, B) to the row and column of value. The rows of y are AXES axes (1 to 5), axis 0 the innermost.
// Other elements stay: fragments outside the index are discarded, and with BEFORE, a copy of the rows of y from first_row
// on, a fragment keeps the other elements of its texel. ALIGNED: a texel of y is one texel of value.
#include "common/flat.glsl"
#include "common/elements.glsl"
uniform SAMPLER value;
uniform int value_row, value_col, start_row, start_col;
#if AXES > 1
uniform int start0;
#endif
#if AXES > 2
uniform int start1;
#endif
#if AXES > 3
uniform int start2;
#endif
#if AXES > 4
uniform int start3;
#endif
#if BEFORE
uniform SAMPLER before;
uniform int first_row;
#endif
#ifdef WHOLE
layout(location = 0) out ivec4 y;
#else
layout(location = 0) out vec4 y;
#endif

#define ELEMENTS_OF(name, row, texel, TEXELS, WIDTH, HEIGHT) TEXEL(name, (row) * TEXELS + (texel), WIDTH, HEIGHT)
#define VALUE(row, texel) ELEMENTS_OF(value, row, texel, VALUE_TEXELS, VALUE_WIDTH, VALUE_HEIGHT)

// Whether the index selects a position of an axis, and its number among the selected positions.
bool taken(int index, int first, int size, int step, out int number) {
    int along = index - first;
    number = along / step;
    return along >= 0 && number < size && number * step == along;
}
#define AXIS(INDEX, START, SIZE, STEP, A, B) inside = taken(INDEX, START, SIZE, STEP, number) && inside; \
    from += number * ivec2(A, B);

void main() {
    ivec2 at = output_place(), from = ivec2(value_row, value_col);
    int rest = at.x, number;
    bool inside = true;
#if AXES > 1
    AXIS(rest % AXIS0_EDGE, start0, AXIS0_SIZE, AXIS0_STEP, AXIS0_A, AXIS0_B)
    rest /= AXIS0_EDGE;
#endif
#if AXES > 2
    AXIS(rest % AXIS1_EDGE, start1, AXIS1_SIZE, AXIS1_STEP, AXIS1_A, AXIS1_B)
    rest /= AXIS1_EDGE;
#endif
#if AXES > 3
    AXIS(rest % AXIS2_EDGE, start2, AXIS2_SIZE, AXIS2_STEP, AXIS2_A, AXIS2_B)
    rest /= AXIS2_EDGE;
#endif
#if AXES > 4
    AXIS(rest % AXIS3_EDGE, start3, AXIS3_SIZE, AXIS3_STEP, AXIS3_A, AXIS3_B)
    rest /= AXIS3_EDGE;
#endif
    AXIS(rest, start_row, OUTER_SIZE, OUTER_STEP, OUTER_A, OUTER_B)
    if (!inside) discard;

    bvec4 chosen = bvec4(false);
    ELEMENTS v = ELEMENTS(0);
    for (int lane = 0; lane < 4; lane++) {
        chosen[lane] = taken(4 * at.y + lane, start_col, SIZE, STEP, number);
#if !ALIGNED
        ivec2 element = from + (chosen[lane] ? number : 0) * ivec2(A, B);
        if (chosen[lane]) v[lane] = picked(VALUE(element.x, element.y >> 2), element.y);
#endif
    }
    if (!any(chosen)) discard;
#if ALIGNED
    v = VALUE(from.x, (from.y + 4 * at.y - start_col) >> 2);
#endif
#if BEFORE
    ELEMENTS old = ELEMENTS_OF(before, at.x - first_row, at.y, BEFORE_TEXELS, BEFORE_WIDTH, BEFORE_HEIGHT);
#else
    ELEMENTS old = ELEMENTS(0);
#endif
    y = ELEMENTS(chosen.x ? v.x : old.x, chosen.y ? v.y : old.y, chosen.z ? v.z : old.z, chosen.w ? v.w : old.w);
}

#version 300 es
// y = x in another shape: element n of y is element n of x, both in row-major order without padding; rows of x have X_COLS
// columns. Floats, or with WHOLE integers.
#include "common/flat.glsl"
#include "common/elements.glsl"
uniform SAMPLER x;
layout(location = 0) out ELEMENTS y;

// Returns the element of x at `from`, and advances `from` by one.
ELEMENT next(inout ivec2 from) {
    ELEMENT value = picked(TEXEL(x, from.x * X_TEXELS + (from.y >> 2), X_WIDTH, X_HEIGHT), from.y);
    from = from.y == X_COLS - 1 ? ivec2(from.x + 1, 0) : ivec2(from.x, from.y + 1);
    return value;
}

void main() {
    ivec2 at = output_place();
    uint number = uint(at.x) * uint(OUT_COLS) + uint(4 * at.y);
    ivec2 from = ivec2(number / uint(X_COLS), number % uint(X_COLS));
    ELEMENTS v;
    v.x = next(from);
    v.y = next(from);
    v.z = next(from);
    v.w = next(from);
    y = trimmed(v, at.y, OUT_COLS);
}

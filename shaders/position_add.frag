#version 300 es
// y[b · LENGTH + s] = x[b · LENGTH + s] + table[offset + s]: learned positions added to sequences of LENGTH rows.
// x and y of one shape, table [TABLE_ROWS, OUT_COLS]; four elements a texel (common/flat.glsl).
#include "common/flat.glsl"
uniform sampler2D x;
uniform sampler2D table;
uniform int offset;
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
    int position = min(offset + at.x % LENGTH, TABLE_ROWS - 1);  // padding rows may have no position
    y = TEXEL(x, at.x * X_TEXELS + at.y, X_WIDTH, X_HEIGHT) +
        TEXEL(table, position * TABLE_TEXELS + at.y, TABLE_WIDTH, TABLE_HEIGHT);
}

#version 300 es
// The last pass of top-k: the values and the columns of the largest elements of each row, from the sorted columns.
// x [ROWS, cols]; the columns of row r fill the texels of list r; values and indices [ROWS, k].
#include "common/flat.glsl"
uniform sampler2D x;
uniform usampler2D columns;
layout(location = 0) out vec4 values;
layout(location = 1) out ivec4 indices;

float element(int row, int column) {
    return TEXEL(x, row * X_TEXELS + column / 4, X_WIDTH, X_HEIGHT)[column % 4];
}

void main() {
    ivec2 at = output_place();
    ivec4 found = ivec4(TEXEL(columns, at.x * OUT_TEXELS + at.y, COLUMNS_WIDTH, COLUMNS_HEIGHT));
    vec4 v = vec4(element(at.x, found.x), element(at.x, found.y), element(at.x, found.z), element(at.x, found.w));
    values = trimmed(v, at.y, OUT_COLS);
    indices = found * ivec4(lessThan(columns_of(at.y), ivec4(OUT_COLS)));
}

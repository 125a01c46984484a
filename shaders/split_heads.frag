#version 300 es
// Heads of queries, all rows of one below each other: y[h * ROWS + r] = turned(x[r, head FIRST + h]), see
// common/heads.glsl. Row r has position `position` + r. x [ROWS, heads * HEAD_DIM], y [H * ROWS, HEAD_DIM].
#include "common/heads.glsl"
#if TURNS && TABLE_ROWS > 1
uniform int position;
#else
const int position = 0;
#endif
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
    int row = at.x % ROWS;
    y = trimmed(turned_texel(row, FIRST + at.x / ROWS, at.y, position + row), at.y, HEAD_DIM);
}

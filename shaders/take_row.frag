#version 300 es
// Takes one of many rows: y = x[row], [1, DIM] in blocks. Row ROWS · slot + n of x is in slot `slot` of texture n.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
uniform int row;
layout(location = 0) out vec4 y;

#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source == n) y = FETCH(X, from, X_SIZE);

void main() {
    locate();
    int source = row % ROWS;
    ivec2 from = block_origin(row / ROWS, out_block, X_LAYOUT) + lane_offset(out_lane);
    y = vec4(0.0);
    EACH_ROW(TAKE)
}

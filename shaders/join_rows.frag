#version 300 es
// Rows in one texture: row ROWS · slot + n of x is in slot `slot` of texture n, and becomes slot ROWS · slot + n of y.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 y;

#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source == n) y = FETCH(X, from, X_SIZE);

void main() {
    locate();
    int source = out_slot % ROWS;
    ivec2 from = block_origin(out_slot / ROWS, out_block, X_LAYOUT) + lane_offset(out_lane);
    y = vec4(0.0);
    EACH_ROW(TAKE)
}

#version 300 es
// Rows in one texture: row ROWS · slot + n of x is in slot `slot` of texture n, and becomes slot ROWS · slot + n of y.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 y;

#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source == n) y = FETCH(X, from, ivec2(X_WIDTH, X_HEIGHT));

void main() {
    locate();
    int source = out_slot % ROWS;
    ivec2 from = block_origin(out_slot / ROWS, out_block, X_PLACES) + lane_offset(out_lane);
    y = vec4(0.0);
    EACH_ROW(TAKE)
}

#version 300 es
// Rows in one texture: row ROWS · slot + n of x is in slot `slot` of texture n, and becomes slot ROWS · slot + n of y.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 y;

#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source == n) y = FETCH(X, from, ivec2(X_WIDTH, X_HEIGHT));

void main() {
    Place at = output_place();
    int source = at.slot % ROWS;
    ivec2 from = block_origin(at.slot / ROWS, at.block, X_PLACES) + lane_offset(at.lane);
    y = vec4(0.0);
    EACH_ROW(TAKE)
}

#version 300 es
// Stores keys, values and queries of several rows in the cache, each in the slot of its token. shaders/gemm.frag wrote row
// ROWS · slot + n to slot `slot` of texture n. With STRIP the rows follow each other in one sequence, and the draw covers a
// strip of the cache; otherwise the vertex shader gives the row of each block of the cache.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
EACH_ROW(DECLARE_INPUT)
#if STRIP
#include "common/row_info.glsl"
#else
flat in int row;
#endif
layout(location = 0) out vec4 y;

#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source == n) y = FETCH(X, from, ivec2(X_WIDTH, X_HEIGHT));

void main() {
    Place at = output_place();
#if STRIP
    uvec4 info = ROW_TEXEL(0, 0);
    int row = at.slot - int(info.y + info.z);
#endif
    int source = row % ROWS;
    ivec2 from = block_origin(row / ROWS, at.block, X_PLACES) + lane_offset(at.lane);
    y = vec4(0.0);
    EACH_ROW(TAKE)
}

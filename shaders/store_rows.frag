#version 300 es
// Stores what several rows keep for later ones in the cache, each in the slot of its token: keys, values and queries, or
// with FACTOR_BLOCK the product of two parts of a row, of which the second begins at that block. shaders/gemm.frag wrote row
// ROWS · slot + n to slot `slot` of texture n. With STRIP the rows follow each other in one sequence, and the draw covers a
// strip of the cache; with ALONE there is one row, and the draw covers its slot; otherwise the vertex shader gives the row of
// each block of the cache.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/half.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
#define X_SIZE ivec2(X_WIDTH, X_HEIGHT)
EACH_ROW(DECLARE_INPUT)
#if STRIP
#include "common/row_info.glsl"
#elif !defined(ALONE)
flat in int row;
#endif
layout(location = 0) out vec4 y;

#ifdef FACTOR_BLOCK
#define VALUE(X) stored(FETCH(X, IN_X(from), X_SIZE) * FETCH(X, IN_X(other), X_SIZE))
#else
#define VALUE(X) FETCH(X, IN_X(from), X_SIZE)
#endif
#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source == n) y = VALUE(X);

void main() {
    Place at = output_place();
#if STRIP
    uvec4 info = ROW_TEXEL(0, 0);
    int row = at.slot - int(info.y + info.z);
#elif defined(ALONE)
    const int row = 0;
#endif
    int source = row % ROWS;
    ivec2 from = block_origin(row / ROWS, at.block, X_PLACES) + lane_offset(at.lane);
#ifdef FACTOR_BLOCK
    ivec2 other = block_origin(row / ROWS, FACTOR_BLOCK + at.block, X_PLACES) + lane_offset(at.lane);
#endif
    y = vec4(0.0);
    EACH_ROW(TAKE)
}

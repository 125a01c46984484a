#version 300 es
// Covers the cache slots of rows 0, 1, …: every block of the slot of the row's token, by
// block_cover.glsl. With RING the cache has RING slots for each sequence, which has EVERY slots in the table. With LAST_ROWS
// it covers those of the rows from first_row on.
#include "common/block_cover.glsl"
#include "common/row_info.glsl"
flat out int row;
#ifdef LAST_ROWS
uniform int first_row;
#endif

void main() {
    int index = cover_index();
    row = index / OUT_BLOCKS;
#ifdef LAST_ROWS
    row += first_row;
#endif
    uvec4 info = texelFetch(rows, ivec2((row / ROWS_STACK) * ROWS_TEXELS, row % ROWS_STACK), 0);
#ifdef RING
    int slot = int(info.z) / EVERY * RING + (int(info.y) + int(info.z) % EVERY) % RING;
#else
    int slot = int(info.y + info.z);
#endif
    cover(out_origin(slot, index % OUT_BLOCKS), 1);
}

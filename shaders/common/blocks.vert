#version 300 es
// Covers every block that a pass writes: blocks 0, 1, … of slots first_slot, first_slot + 1, …; or with CELLS, where all
// slots from 0 on are written, square cells of cell_edge blocks a side, cells_across of them side by side in a tile and
// cells_each in all. A cell may reach over blocks behind the last slot, which nobody reads.
#include "common/block_cover.glsl"
#if CELLS
uniform int cell_edge;
uniform int cells_across;
uniform int cells_each;
#else
uniform int first_slot;
#endif
#ifdef PARTS
flat out int part;  // which instance
#endif

void main() {
    int index = cover_index();
#if CELLS
    int tile = index / cells_each, cell = index % cells_each;
    cover(ivec2(tile * OUT_PITCH, 0) + 4 * cell_edge * ivec2(cell % cells_across, cell / cells_across), cell_edge);
#else
    cover(out_origin(first_slot + index / OUT_BLOCKS, index % OUT_BLOCKS), 1);
#endif
#ifdef PARTS
    part = gl_InstanceID;
#endif
}

#version 300 es
// Covers every block that a pass writes: blocks 0, 1, … of slots first_slot, first_slot + 1, …; or with CELLS, where all
// slots from 0 on are written, square cells of several blocks. A cell may cover blocks after the last slot, or after the
// last block of a slot. No pass reads them; single-block cells skip the latter.
#include "common/block_cover.glsl"
#if !CELLS
uniform int first_slot;
#endif
#ifdef PARTS
flat out int part;  // number of the instance
#endif

void main() {
#if CELLS
    ivec2 cell = cover_cell();
#if OUT_BLOCK_STEP == 1 && OUT_BLOCKS % OUT_TILES != 0
    int block = (cell.y * OUT_COLUMNS + cell.x) % OUT_SLOT_STEP * OUT_TILES + cover_index() / cells_each;
    if (cell_edge == 1 && block >= OUT_BLOCKS) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);  // outside of what is drawn
#endif
#else
    int index = cover_index();
    cover(out_origin(first_slot + index / OUT_BLOCKS, index % OUT_BLOCKS), 1);
#endif
#ifdef PARTS
    part = gl_InstanceID;
#endif
}

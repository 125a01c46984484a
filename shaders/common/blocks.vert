#version 300 es
// Covers every block that a pass writes: blocks 0, 1, … of slots first_slot, first_slot + 1, …; or with CELLS, where all
// slots from 0 on are written, square cells of several blocks. A cell may cover blocks behind the last slot, which no pass
// reads.
#include "common/block_cover.glsl"
#if !CELLS
uniform int first_slot;
#endif
#ifdef PARTS
flat out int part;  // number of the instance
#endif

void main() {
#if CELLS
    cover_cell();
#else
    int index = cover_index();
    cover(out_origin(first_slot + index / OUT_BLOCKS, index % OUT_BLOCKS), 1);
#endif
#ifdef PARTS
    part = gl_InstanceID;
#endif
}

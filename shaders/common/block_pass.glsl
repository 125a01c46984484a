// The block and lane that a fragment writes, in passes over blocks.
#include "common/blocks.glsl"
#include "common/quad.glsl"
#include "common/fetch.glsl"
#include "common/regions.glsl"

// The slot, block and lane that the fragment writes, set by locate(). They are no struct, since Adreno GPUs lose the high
// bits of integers in structs. The last block of a tile may belong to no slot (out_block ≥ OUT_BLOCKS).
int out_slot, out_block, out_lane;

void locate() {
    ivec2 texel = OUT_TEXEL;
    int tile = OUT_TILES == 1 ? 0 : texel.x / OUT_PITCH;
    int index = (texel.y >> 2) * OUT_COLUMNS + ((texel.x - tile * OUT_PITCH) >> 2);
    ivec2 inner = texel & 3;
    int quad = (inner.x >> 1) + 2 * (inner.y >> 1);
    out_lane = 4 * quad + (inner.x & 1) + 2 * (inner.y & 1);
#ifdef OUT_ASIDE
    // A shared block belongs to the first slot that shares it.
    if (texel.y >= OUT_ASIDE_LINE) {
        index -= (OUT_ASIDE_LINE >> 2) * OUT_COLUMNS;
        out_slot = OUT_EVERY * (index % OUT_ASIDE_SLOTS);
        out_block = OUT_ASIDE + index / OUT_ASIDE_SLOTS;
        return;
    }
#endif
    // One of the two steps is 1; the other is the distance of two slots or blocks.
#if OUT_BLOCK_STEP == 1
    out_slot = index / OUT_SLOT_STEP;
    int block = index % OUT_SLOT_STEP;
#else
    out_slot = index % OUT_BLOCK_STEP;
    int block = index / OUT_BLOCK_STEP;
#endif
    out_block = block * OUT_TILES + tile;
}

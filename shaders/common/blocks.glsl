// The positions of vectors in blocks of 4×4 texels, four floats a texel, as glinfer/gl/layouts/blocks.py computes them.
// A tensor X is described by X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP and X_COLUMNS. Texels of a block are numbered
// quad by quad: lane 4q + m is member m of quad q, and members and quads are numbered bottom left, bottom right, top left,
// top right.
precision highp float;
precision highp int;
precision highp sampler2D;
precision highp isampler2D;
precision highp usampler2D;

ivec2 block_origin(int slot, int block, int tiles, int pitch, int slot_step, int block_step, int columns) {
    int index = slot * slot_step + block / tiles * block_step;
    return ivec2((block % tiles) * pitch + 4 * (index % columns), 4 * (index / columns));
}

// The position of copy `slot` of `slots` copies of a shared block, from line `line` on.
ivec2 aside_origin(int slot, int block, int slots, int columns, int line) {
    int index = block * slots + slot;
    return ivec2(4 * (index % columns), line + 4 * (index / columns));
}

// (x, y) inside a block of a lane, or inside a quad of a member.
ivec2 lane_offset(int lane) {
    int quad = lane >> 2;
    return ivec2(2 * (quad & 1) + (lane & 1), 2 * (quad >> 1) + ((lane >> 1) & 1));
}

// The position of a texel of a slot.
ivec2 texel_position(int slot, int texel, int tiles, int pitch, int slot_step, int block_step, int columns) {
    return block_origin(slot, texel >> 4, tiles, pitch, slot_step, block_step, columns) + lane_offset(texel & 15);
}

#version 300 es
// Covers the blocks of attention scores by cells, as blocks.vert does, except cells in which all 64 tokens of a group come
// after all rows of a slot; no pass reads those scores.
#include "common/block_cover.glsl"
#include "common/row_info.glsl"
#include "common/seen.glsl"
uniform int row_slots;

bool seen(int slot) {
    int row = ROWS * (slot % row_slots);
    ivec2 texel = ivec2((row / ROWS_STACK) * ROWS_TEXELS, row % ROWS_STACK);
    int position = int(texelFetch(rows, texel, 0).y);
#ifdef AHEAD
    int last = int(texelFetch(rows, texel + ivec2(1, 0), 0).w);
#endif
    return 64 * (slot / row_slots) <= SEEN(ROWS - 1);
}

void main() {
    ivec2 corner = cover_cell();
    // The slots between the first and the last one of the cell, which are a few more than it covers.
    int first = (corner.y * OUT_COLUMNS + corner.x) / OUT_SLOT_STEP;
    int last = ((corner.y + cell_edge - 1) * OUT_COLUMNS + corner.x + cell_edge - 1) / OUT_SLOT_STEP;
    bool any_seen = false;
    for (int slot = first; slot <= last; slot++) any_seen = any_seen || seen(slot);
    if (!any_seen) gl_Position = vec4(2.0, 2.0, 2.0, 1.0);  // outside of what is drawn
}

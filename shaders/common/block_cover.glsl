// Covers blocks of a target from a vertex shader: by one point, which is one vertex, or by two triangles, which are six
// (WebGL2 promises no point larger than one pixel).
#include "common/blocks.glsl"

// The number of the point, or of the pair of triangles, that this vertex belongs to.
int cover_index() {
#if POINTS
    return gl_VertexID;
#else
    return gl_VertexID / 6;
#endif
}

// Covers a square of blocks, `edge` of them a side, from texel `origin` on.
void cover(ivec2 origin, int edge) {
#if POINTS
    vec2 corner = vec2(2 * edge);
    gl_PointSize = float(4 * edge);
#else
    int vertex = gl_VertexID % 6;
    vec2 corner = float(4 * edge) * vec2(vertex == 1 || vertex == 2 || vertex == 4, vertex == 2 || vertex == 4 || vertex == 5);
#endif
    gl_Position = vec4(2.0 * (vec2(origin) + corner) / vec2(OUT_WIDTH, OUT_HEIGHT) - 1.0, 0.0, 1.0);
}

#if CELLS
uniform int cell_edge;
uniform int cells_across;
uniform int cells_each;

// Covers this vertex's cell, a square of cell_edge blocks a side; a tile has cells_across of them side by side and
// cells_each in all; returns its first corner in the tile, in blocks.
ivec2 cover_cell() {
    int index = cover_index();
    int tile = index / cells_each, cell = index % cells_each;
    ivec2 corner = cell_edge * ivec2(cell % cells_across, cell / cells_across);
    cover(ivec2(tile * OUT_PITCH, 0) + 4 * corner, cell_edge);
    return corner;
}
#endif

ivec2 out_origin(int slot, int block) {
#ifdef OUT_ASIDE
    if (block >= OUT_ASIDE) return aside_origin(slot / OUT_EVERY, block - OUT_ASIDE, OUT_ASIDE_SLOTS, OUT_COLUMNS, OUT_ASIDE_LINE);
#endif
    return block_origin(slot, block, OUT_TILES, OUT_PITCH, OUT_SLOT_STEP, OUT_BLOCK_STEP, OUT_COLUMNS);
}

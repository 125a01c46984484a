#version 300 es
// Covers every block that a pass writes, blocks 0, 1, … of slots first_slot, first_slot + 1, …: with POINTS by one
// point of 4×4 pixels, else by two triangles (WebGL2 promises no larger point than one pixel).
#include "common/blocks.glsl"
uniform int first_slot;
#ifdef PARTS
flat out int part;  // which instance
#endif

void main() {
#if POINTS
    int index = gl_VertexID;
    ivec2 corner = ivec2(2);
    gl_PointSize = 4.0;
#else
    int index = gl_VertexID / 6, vertex = gl_VertexID % 6;
    ivec2 corner = ivec2(vertex == 1 || vertex == 2 || vertex == 4 ? 4 : 0, vertex == 2 || vertex == 4 || vertex == 5 ? 4 : 0);
#endif
    int slot = first_slot + index / OUT_BLOCKS, block = index % OUT_BLOCKS;
    vec2 at = vec2(block_origin(slot, block, OUT_TILES, OUT_PITCH, OUT_SLOT_STEP, OUT_BLOCK_STEP, OUT_COLUMNS) + corner);
    gl_Position = vec4(2.0 * at / vec2(OUT_WIDTH, OUT_HEIGHT) - 1.0, 0.0, 1.0);
#ifdef PARTS
    part = gl_InstanceID;
#endif
}

#version 300 es
// Covers the state of each row's sequence where the row ends a span before an even one, or with parity 1 before an odd one
// (shaders/delta_fold.frag): STATE_ROWS slots next to each other, a line for each block. Other rows draw nothing.
#include "common/block_cover.glsl"
#if ALONE
uniform int position;
#else
#include "common/row_info.glsl"
#endif
uniform int parity;
flat out int row;

void main() {
    int index = cover_index(), vertex = gl_VertexID % 6;
    row = index / OUT_BLOCKS;
#if ALONE
    int end = position + 1, sequence = 0;
#else
    ivec4 info = ivec4(texelFetch(rows, ivec2((row / ROWS_STACK) * ROWS_TEXELS, row % ROWS_STACK), 0));
    int end = info.y + info.z % EVERY + 1, sequence = info.z / EVERY;
#endif
    ivec2 origin = out_origin(sequence * STATE_ROWS, index % OUT_BLOCKS);
    vec2 corner = vec2(vertex == 1 || vertex == 2 || vertex == 4, vertex == 2 || vertex == 4 || vertex == 5);
    corner *= vec2(4 * STATE_ROWS, 4);
    bool folds = end % SPAN == 0 && (end / SPAN & 1) == parity;
    gl_Position = folds ? vec4(2.0 * (vec2(origin) + corner) / vec2(OUT_WIDTH, OUT_HEIGHT) - 1.0, 0.0, 1.0) : vec4(2.0, 2.0, 2.0, 1.0);
}

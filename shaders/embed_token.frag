#version 300 es
// The embedding of one token at one position: EMBEDDING_SCALE · wte[token] + wpe[position], [1, DIM] in blocks.
// token is an id, or -1 for the best candidate in slot
// position - 1 of picks.
#include "common/block_pass.glsl"
#include "common/table.glsl"
#include "common/picked.glsl"
uniform int token;
uniform int position;
layout(location = 0) out vec4 y;

void main() {
    locate();
    int column = out_block * 16 + out_lane;
    int id = token >= 0 ? token : best_candidate(position - 1);
    y = column < DIM_TEXELS ? embedding(id, position, column) : vec4(0.0);
}

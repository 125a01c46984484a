#version 300 es
// The embeddings of several tokens: wte[token] + wpe[position] of each row, token and position as rows has them.
// Row ROWS · slot + n goes to slot `slot` of target n, in blocks.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
uniform sampler2D wte;
uniform sampler2D wpe;
EACH_ROW(DECLARE_TARGET)

vec4 embedding(int row, int column) {
    uvec4 info = ROW_TEXEL(row, 0);
    int token = int(info.x), position = int(info.y);
    return FETCH(wte, ivec2((token / WTE_STACK) * WTE_TEXELS + column, token % WTE_STACK), ivec2(WTE_WIDTH, WTE_HEIGHT)) +
           FETCH(wpe, ivec2((position / WPE_STACK) * WPE_TEXELS + column, position % WPE_STACK), ivec2(WPE_WIDTH, WPE_HEIGHT));
}

#define EMBED(n, X, R, Y, V, A, B, C, D, E, S) Y = column < WTE_TEXELS ? embedding(ROWS * at.slot + n, column) : vec4(0.0);

void main() {
    Place at = output_place();
    int column = at.block * 16 + at.lane;
    EACH_ROW(EMBED)
}

#version 300 es
// The embeddings of several tokens: EMBEDDING_SCALE · wte[token] + wpe[position] of each row, with both from the table rows.
// Row ROWS · slot + n goes to slot `slot` of target n, in blocks. With picks, token 0xffffffff means the best candidate in
// the row's slot of picks, which the previous run chose. With TYPED the table of rows has the row of wpe, for a position and
// a token type. With images, a row whose token is TOKENS or more is that row of images.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
#include "common/table.glsl"
#ifdef PICKS_BLOCKS
#include "common/picked.glsl"
#endif
EACH_ROW(DECLARE_TARGET)
#ifdef TOKENS
uniform sampler2D images;
#endif

vec4 embedding_of(int row, int column) {
    uvec4 info = ROW_TEXEL(row, 0);
    int token = int(info.x);
#ifdef PICKS_BLOCKS
    if (token < 0) token = best_candidate(row);
#endif
#ifdef TOKENS
    if (token >= TOKENS)
        return FETCH(images, ivec2((row / IMAGES_STACK) * IMAGES_TEXELS + column, row % IMAGES_STACK), ivec2(IMAGES_WIDTH, IMAGES_HEIGHT));
#endif
#ifdef TYPED
    return embedding(token, int(info.w), column);
#else
    return embedding(token, int(info.y), column);
#endif
}

#define EMBED(n, X, R, Y, V, A, B, C, D, E, F, S) \
    Y = column < DIM_TEXELS ? embedding_of(ROWS * out_slot + n, column) : vec4(0.0);

void main() {
    locate();
    int column = out_block * 16 + out_lane;
    EACH_ROW(EMBED)
}

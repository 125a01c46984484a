#version 300 es
// The hidden numbers of a layer's third branch: y[r] = x[r] · (p / sqrt(mean(p²) + EPS) · gain + √DIM · table[token]) / √2.
// x are the gates of the rows and p, DIM numbers from block FIRST_BLOCK on, is part of row r of projected, a row a slot. With
// MANY row ROWS · slot + n of x and y is in slot `slot` of texture n, and the table rows has its token, of which 0xffffffff
// is the best candidate in the row's slot of picks. Without MANY token is the id, or -1 for the best candidate in slot
// position - 1 of picks.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/table.glsl"
#define P_SIZE ivec2(P_WIDTH, P_HEIGHT)
EACH_ROW(DECLARE_INPUT)
uniform sampler2D projected;
uniform sampler2D gain;
#ifdef PICKS_BLOCKS
#include "common/picked.glsl"
#endif
#ifdef MANY
#include "common/row_info.glsl"
#else
uniform int token;
uniform int position;
#endif
EACH_ROW(DECLARE_TARGET)

int token_of(int row) {
#ifdef MANY
    int id = int(ROW_TEXEL(row, 0).x);
#ifdef PICKS_BLOCKS
    if (id < 0) id = best_candidate(row);
#endif
    return id;
#else
    return token >= 0 ? token : best_candidate(position - 1);
#endif
}

vec4 projected_texel(int row, int texel) {
    ivec2 from = block_origin(row, FIRST_BLOCK + (texel >> 4), P_TILES, P_PITCH, P_SLOT_STEP, P_BLOCK_STEP, P_COLUMNS);
    return FETCH(projected, (from + lane_offset(texel & 15)), P_SIZE);
}

vec4 inputs_of(int row, int column) {
    float sum = 0.0;
    for (int i = 0; i < DIM_TEXELS; i++) {
        vec4 v = projected_texel(row, i);
        sum += dot(v, v);
    }
    vec4 normed = projected_texel(row, column) * inversesqrt(sum / float(DIM) + float(EPS));
    normed *= FETCH(gain, ivec2(column, 0), ivec2(DIM_TEXELS, 1));
    return (normed + embedding(token_of(row), 0, column)) * 0.70710678;
}

#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    Y = column < DIM_TEXELS ? FETCH(X, IN_X(own), X_SIZE) * inputs_of(ROWS * out_slot + n, column) : vec4(0.0);

void main() {
    locate();
    int column = 16 * out_block + out_lane;
    ivec2 own = block_origin(out_slot, out_block, X_LAYOUT) + lane_offset(out_lane);
    EACH_ROW(FINISH)
}

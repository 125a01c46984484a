#version 300 es
// Joins each MERGED consecutive rows of x, of X_TEXELS texels each, to one row of y: row t is rows MERGED · t to
// MERGED · t + MERGED - 1 of x side by side. Row ROWS · slot + n of x is in slot `slot` of texture n, as are rows of y.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_TARGET)

#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source % ROWS == n) found = FETCH(X, from, ivec2(X_WIDTH, X_HEIGHT));

vec4 merged(int row) {
    int column = out_block * 16 + out_lane, part = column / X_TEXELS, texel = column % X_TEXELS;
    int source = MERGED * row + part;
    vec4 found = vec4(0.0);
    if (part < MERGED) {
        ivec2 from = block_origin(source / ROWS, texel >> 4, X_PLACES) + lane_offset(texel & 15);
        EACH_ROW(TAKE)
    }
    return found;
}

#define MERGE(n, X, R, Y, V, A, B, C, D, E, F, S) Y = merged(ROWS * out_slot + n);

void main() {
    locate();
    EACH_ROW(MERGE)
}

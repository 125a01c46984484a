#version 300 es
// Joins each MERGED consecutive rows of x, of X_TEXELS texels each, to one row of y: row t is rows MERGED · t to
// MERGED · t + MERGED - 1 of x side by side. Row ROWS · slot + n of x is in slot `slot` of texture n, as are rows of y.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_TARGET)

#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source % ROWS == n) found = FETCH(X, from, X_SIZE);

vec4 merged(int row) {
    int column = out_block * 16 + out_lane, part = column / X_TEXELS, texel = column % X_TEXELS;
    int source = MERGED * row + part;
    vec4 found = vec4(0.0);
    if (part < MERGED) {
        ivec2 from = texel_position(source / ROWS, texel, X_LAYOUT);
        EACH_ROW(TAKE)
    }
    return found;
}

#define MERGE(n, X, R, Y, V, A, B, C, D, E, F, S) Y = merged(ROWS * out_slot + n);

void main() {
    locate();
    EACH_ROW(MERGE)
}

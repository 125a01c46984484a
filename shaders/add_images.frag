#version 300 es
// The stream with the rows of images added: y[r] = x[r] + images[r] where the token of row r in the table rows is TOKENS or
// more, otherwise x[r]. Row ROWS · slot + n of x and y is in slot `slot` of texture n, in blocks; images is a table with
// DIM_TEXELS texels a row.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
EACH_ROW(DECLARE_INPUT)
uniform sampler2D images;
EACH_ROW(DECLARE_TARGET)

vec4 image_at(int row, int column) {
    if (uint(ROW_TEXEL(row, 0).x) < uint(TOKENS) || column >= DIM_TEXELS) return vec4(0.0);
    return FETCH(images, ivec2((row / IMAGES_STACK) * IMAGES_TEXELS + column, row % IMAGES_STACK), ivec2(IMAGES_WIDTH, IMAGES_HEIGHT));
}

#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    Y = FETCH(X, IN_X(from), ivec2(X_WIDTH, X_HEIGHT)) + image_at(ROWS * out_slot + n, column);

void main() {
    locate();
    ivec2 from = block_origin(out_slot, out_block, X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS) + lane_offset(out_lane);
    int column = out_block * 16 + out_lane;
    EACH_ROW(FINISH)
}

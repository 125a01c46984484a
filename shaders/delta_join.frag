#version 300 es
// The inverses of blocks of 2 · SIZE rows of a run from those of SIZE: y [rows, HEADS · RUN_BLOCKS · 64], where rows of second halves
// have in columns of the first -solved · product, with product of shaders/delta_lower.frag, and all else stays.
#include "common/block_pass.glsl"
#include "common/delta_solved.glsl"
uniform sampler2D product;
layout(location = 0) out vec4 y;

vec4 of_product(int row, int block, int lane) {
    ivec2 from = block_origin(row, block, PRODUCT_TILES, PRODUCT_PITCH, PRODUCT_SLOT_STEP, PRODUCT_BLOCK_STEP, PRODUCT_COLUMNS) +
                 lane_offset(lane);
    return FETCH(product, from, ivec2(PRODUCT_WIDTH, PRODUCT_HEIGHT));
}

void main() {
    locate();
    int row = out_slot, head = out_block / RUN_BLOCKS, texel = 16 * (out_block % RUN_BLOCKS) + out_lane;
    int second = row - row % SIZE, column = 4 * texel;
    y = vec4(0.0);
    if (head < HEADS && (row / SIZE & 1) == 1 && column < second && column >= second - SIZE) {
        vec4 weights;
        for (int other = second; other <= row; other++) {
            if ((other & 3) == 0) weights = inverted(row, head, other >> 2);
            y -= weights[other & 3] * of_product(other, out_block, out_lane);
        }
    } else if (head < HEADS) {
        y = inverted(row, head, texel);
    }
}

#version 300 es
// Rows of the cache of a delta rule, y [rows, k | G | u], from those of apart, whose u are as if each row were the first of its
// run: u is the product of shaders/delta_solve.frag with them.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
uniform sampler2D apart;
layout(location = 0) out vec4 y;

vec4 alone(int row, int texel) {
    ivec2 from = texel_position(row, texel, APART_TILES, APART_PITCH, APART_SLOT_STEP, APART_BLOCK_STEP, APART_COLUMNS);
    return FETCH(apart, from, ivec2(APART_WIDTH, APART_HEIGHT));
}

void main() {
    locate();
    int row = out_slot, texel = 16 * out_block + out_lane;
    if (texel < C_U || texel >= C_U + HEADS * VALUE_TEXELS) {
        y = alone(row, texel);
    } else {
        int head = (texel - C_U) / VALUE_TEXELS, first = first_row(row);
        vec4 sum = vec4(0.0), weights = inverted(row, head, first >> 2);
        for (int other = first; other <= row; other++) {
            if ((other & 3) == 0) weights = inverted(row, head, other >> 2);
            sum += weights[other & 3] * alone(other, texel);
        }
        y = sum;
    }
}

#version 300 es
// For each pair of neighbouring blocks of SIZE rows of a run: L from the rows of the first to those of the second, times the
// inverse of the first: y [rows, HEADS · RUN_BLOCKS · 64], zero elsewhere. L is beta of x times weights of scores.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
#include "common/delta_solved.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int row = out_slot, head = out_block / RUN_BLOCKS, texel = 16 * (out_block % RUN_BLOCKS) + out_lane;
    int second = row - row % SIZE, column = 4 * texel;
    y = vec4(0.0);
    if (head < HEADS && (row / SIZE & 1) == 1 && column < second && column >= second - SIZE) {
        int from = own_number(row) - row;
        for (int other = max(first_row(row), column); other < second; other++) {
            y += weight(row, head, from + other) * inverted(other, head, texel);
        }
        y *= share(row, head);
    }
}

#version 300 es
// The inverses of I + L over the rows of a run, of blocks of CHUNK rows on the diagonal: y [rows, HEADS · RUN_BLOCKS · 64], where L
// is beta of x times weights of scores: the amount by which corrections of rows reduce those of later rows. A fragment
// solves for four columns, from the first row of its block to its own.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int row = out_slot, head = out_block / RUN_BLOCKS, column = 4 * (16 * (out_block % RUN_BLOCKS) + out_lane);
    y = vec4(0.0);
    if (head < HEADS && column <= row && column >= row - row % CHUNK) {
        int begin = max(first_row(row), column);
        vec4 own[CHUNK];
        for (int r = begin; r <= row; r++) {
            int from = own_number(r) - r + begin;
            vec4 sum = vec4(0.0);
            for (int n = 0; n < r - begin; n++) sum += weight(r, head, from + n) * own[n];
            own[r - begin] = vec4(equal(column + ivec4(0, 1, 2, 3), ivec4(r))) - share(r, head) * sum;
        }
        y = own[row - begin];
    }
}

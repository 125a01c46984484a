#version 300 es
// The inverses of I + L over the rows of a run: y [rows, HEADS · 64], where L is beta of x times weights of scores: the amount by
// which corrections of rows reduce those of later rows. A fragment solves for four columns, from the first of its row's
// consecutive rows to its own.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int row = out_slot, head = out_block, column = 4 * out_lane;
    y = vec4(0.0);
    if (head < HEADS && column <= row) {
        int first = first_row(row), begin = max(first, column), start = POSITION_OF(first);
        int from = start - window_of(start) + begin - first;  // the number of row `begin` among the tokens that rows see
        vec4 own[PIECE];
        for (int r = begin; r <= row; r++) {
            vec4 sum = vec4(0.0), each;
            for (int n = 0; n < r - begin; n++) {
                int seen = from + n;
                if (n == 0 || (seen & 3) == 0) each = weights(r, head, seen >> 2);
                sum += each[seen & 3] * own[n];
            }
            own[r - begin] = vec4(equal(column + ivec4(0, 1, 2, 3), ivec4(r))) - share(r, head) * sum;
        }
        y = own[row - begin];
    }
}

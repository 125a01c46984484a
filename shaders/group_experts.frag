#version 300 es
// The groups of common/choices.glsl: texel n of slot g of the output is (row, expert, 1, 0) of row n of group g. In an
// unused row of an expert's last group, row and the third number are 0; in an unused group all are 0.
#include "common/block_pass.glsl"
#include "common/choices.glsl"
uniform int held;
layout(location = 0) out vec4 y;

void main() {
    locate();
    int row_in_group = 16 * out_block + out_lane;
    y = vec4(0.0);
    if (row_in_group >= ROWS) return;
    int expert = -1, left = out_slot, count = 0;  // groups from the first one of the expert on
    for (int t = 0; t < EXPERT_TEXELS; t++) {
        ivec4 counts = tally_at(0, t);
        for (int c = 0; c < 4; c++) {
            int groups = groups_of(counts[c]);
            if (expert < 0 && left < groups) {
                expert = 4 * t + c;
                count = counts[c];
            }
            if (expert < 0) left -= groups;
        }
    }
    int rank = ROWS * left + row_in_group;
    if (expert < 0) return;
    y.y = float(expert);
    if (rank >= count) return;
    // The span of rows in which the choice is, and then the choice.
    int span = 0;
    for (int n = count_in(0, expert); rank >= n; n = count_in(span, expert)) {
        rank -= n;
        span++;
    }
    int end = min(held, SPAN * (span + 1));
    for (int row = SPAN * span; row < end; row++) {
        for (int i = 0; i < USED; i++) {
            if (expert_at(row, i) == expert) {
                if (rank == 0) y.xz = vec2(float(row), 1.0);
                rank--;
            }
        }
    }
}

#version 300 es
// Counts the choices of each expert by the first `held` rows (common/choices.glsl): texel t of slot 0 has the counts of experts
// 4t to 4t + 3 over all rows, and texel t of slot 1 + s over rows SPAN · s to SPAN · s + SPAN - 1.
#include "common/block_pass.glsl"
#include "common/choices.glsl"
uniform int held;
layout(location = 0) out vec4 y;

void main() {
    locate();
    int first = 4 * (16 * out_block + out_lane);
    y = vec4(0.0);
    int row = out_slot == 0 ? 0 : SPAN * (out_slot - 1), end = out_slot == 0 ? held : min(held, row + SPAN);
    for (; row < end; row++) {
        for (int i = 0; i < USED; i++) y += vec4(equal(ivec4(expert_at(row, i) - first), ivec4(0, 1, 2, 3)));
    }
}

#version 300 es
// The index of each choice in the groups of common/choices.glsl: texel i of slot r of the output is (expert, weight, ROWS · group
// + its row in the group, 0) of choice i of row r.
#include "common/block_pass.glsl"
#include "common/choices.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int own = 16 * out_block + out_lane;
    y = vec4(0.0);
    if (own >= USED) return;
    vec4 chosen = choice_at(out_slot, own);
    int expert = int(chosen.x + 0.5), groups = 0, before = 0;
    for (int t = 0; t < EXPERT_TEXELS; t++) {
        ivec4 counts = tally_at(0, t);
        for (int c = 0; c < 4; c++) {
            if (4 * t + c < expert) groups += groups_of(counts[c]);
        }
    }
    int span = out_slot / SPAN;
    for (int s = 0; s < span; s++) before += count_in(s, expert);
    // A row chooses an expert at most once.
    for (int row = SPAN * span; row < out_slot; row++) {
        for (int i = 0; i < USED; i++) before += int(expert_at(row, i) == expert);
    }
    y = vec4(chosen.xy, float(ROWS * groups + before), 0.0);
}

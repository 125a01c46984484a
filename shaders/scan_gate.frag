#version 300 es
// The results of a scan (Mamba-2) with their gates: y = (result + skip · v) · silu(z). y, results [rows, HEADS · VALUE_TEXELS · 4];
// v is in rows x of shaders/common/delta.glsl, z in each row of gates from block GATE_BLOCK on, and skip [heads] in row 2 of decay.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
#include "common/activation.glsl"
uniform sampler2D results, gates, decay;
layout(location = 0) out vec4 y;

void main() {
    locate();
    int row = out_slot, texel = 16 * out_block + out_lane, head = texel / VALUE_TEXELS;
    y = vec4(0.0);
    if (head < HEADS) {
        ivec2 from = block_origin(row, GATE_BLOCK + out_block, GATES_TILES, GATES_PITCH, GATES_SLOT_STEP, GATES_BLOCK_STEP,
                                  GATES_COLUMNS) + lane_offset(out_lane);
        vec4 z = FETCH(gates, from, ivec2(GATES_WIDTH, GATES_HEIGHT));
        from = block_origin(row, out_block, RESULTS_TILES, RESULTS_PITCH, RESULTS_SLOT_STEP, RESULTS_BLOCK_STEP, RESULTS_COLUMNS) +
               lane_offset(out_lane);
        vec4 result = FETCH(results, from, ivec2(RESULTS_WIDTH, RESULTS_HEIGHT));
        ivec2 at = ivec2(2 / DECAY_STACK * DECAY_TEXELS + (head >> 2), 2 % DECAY_STACK);
        float skip = FETCH(decay, at, ivec2(DECAY_WIDTH, DECAY_HEIGHT))[head & 3];
        y = (result + skip * given(row, X_V + texel)) * silu(z);
    }
}

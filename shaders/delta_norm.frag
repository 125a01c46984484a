#version 300 es
// The results of a delta rule, normalised and gated: y = x / sqrt(mean over the head of x² + EPS) · gain · silu(z).
// x, y [rows, HEADS · VALUE_TEXELS · 4], gains [1, VALUE_TEXELS · 4]; z is in each row of gates from block GATE_BLOCK on.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
#include "common/activation.glsl"
uniform sampler2D gates, gains;
layout(location = 0) out vec4 y;

void main() {
    locate();
    int texel = 16 * out_block + out_lane, inside = texel % VALUE_TEXELS;
    y = vec4(0.0);
    if (texel < HEADS * VALUE_TEXELS) {
        float squares = 0.0;
        for (int i = 0; i < VALUE_TEXELS; i++) {
            vec4 each = given(out_slot, texel - inside + i);
            squares += dot(each, each);
        }
        ivec2 from = block_origin(out_slot, GATE_BLOCK + out_block, GATES_TILES, GATES_PITCH, GATES_SLOT_STEP, GATES_BLOCK_STEP,
                                  GATES_COLUMNS) + lane_offset(out_lane);
        vec4 z = FETCH(gates, from, ivec2(GATES_WIDTH, GATES_HEIGHT));
        vec4 gain = FETCH(gains, ivec2(inside, 0), ivec2(GAINS_WIDTH, GAINS_HEIGHT));
        y = given(out_slot, texel) * inversesqrt(squares / float(4 * VALUE_TEXELS) + float(EPS)) * gain * silu(z);
    }
}

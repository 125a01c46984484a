#version 300 es
// The state of a delta rule after each row that ends a span, in the STATE_ROWS rows of its sequence in y: for row i of it
//   exp(decay of the span) · state + Σ over the span's tokens of exp(decay since) · k[i] · u.
// state has the states before such spans; cache is that of shaders/common/delta.glsl. shaders/common/fold.vert finds the rows.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
uniform sampler2D state;
flat in int row;
layout(location = 0) out vec4 y;

void main() {
    locate();
    int sequence = SEQUENCE_OF(row), last = POSITION_OF(row), texel = 16 * out_block + out_lane;
    int key = out_slot - sequence * STATE_ROWS;
    y = vec4(0.0);
    if (texel < HEADS * VALUE_TEXELS && key < 4 * KEY_TEXELS) {
        int head = texel / VALUE_TEXELS, part = key_of(head) + (key >> 2);
        float since = kept_decay(sequence, last, head);
        if (last >= SPAN) {
            ivec2 from = block_origin(out_slot, out_block, STATE_TILES, STATE_PITCH, STATE_SLOT_STEP, STATE_BLOCK_STEP,
                                      STATE_COLUMNS) + lane_offset(out_lane);
            y = exp(since) * FETCH(state, from, ivec2(STATE_WIDTH, STATE_HEIGHT));
        }
        for (int seen = last - SPAN + 1; seen <= last; seen++) {
            float weight = exp(since - kept_decay(sequence, seen, head)) * kept(sequence, seen, part)[key & 3];
            y += weight * kept(sequence, seen, C_U + texel);
        }
    }
}

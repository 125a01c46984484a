#version 300 es
// The weights with which the independent corrections of a run's rows (shaders/delta_recall.frag) add to rows of states,
// y [rows, HEADS · RUN_BLOCKS · 64]: Σ exp(decay) · k · solved over the rows of the run before the span of a row, whose row of the
// state is of one element of k. Zero if the span began before the run.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
#include "common/delta_solved.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int row = out_slot, head = out_block / RUN_BLOCKS, texel = 16 * (out_block % RUN_BLOCKS) + out_lane;
    int first = first_row(row), key = POSITION_OF(row) % SPAN, last = row - key - 1;
    y = vec4(0.0);
    if (head < HEADS && key < 4 * KEY_TEXELS) {
        float decay = last < first ? 0.0 : own_decay(last, head);
        int part = X_K + key_of(head) + (key >> 2);
        for (int other = max(first, 4 * texel); other <= last; other++) {
            y += exp(decay - own_decay(other, head)) * given(other, part)[key & 3] * inverted(other, head, texel);
        }
    }
}

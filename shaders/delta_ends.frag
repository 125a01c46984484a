#version 300 es
// The weights with which the corrections of a span's tokens add to the row of the state after it that each row keeps:
// y [rows, HEADS · END_BLOCKS · 64], exp(decay) · k of the row's element of k. Zero if the span ends within the run, or if a
// row keeps no row of the state. cache is that of shaders/common/delta.glsl.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int row = out_slot, position = POSITION_OF(row), base = BASE_OF(row), head = out_block / END_BLOCKS;
    int key = position % SPAN, end = position - key, n = 64 * (out_block % END_BLOCKS) + 4 * out_lane;
    vec4 found = vec4(0.0);
    if (head < HEADS && n < SPAN && key < 4 * KEY_TEXELS && end > 0 && end <= POSITION_OF(first_row(row))) {
        float last = kept_decay(base + end - 1, head);
        for (int i = 0; i < 4; i++) {
            int slot = base + end - SPAN + n + i;
            found[i] = exp(last - kept_decay(slot, head)) * kept(slot, key_of(head) + (key >> 2))[key & 3];
        }
    }
    y = found;
}

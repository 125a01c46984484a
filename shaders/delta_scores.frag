#version 300 es
// The weights of the tokens that each row of a delta rule sees, y [rows, 2 · HEADS · SPAN_BLOCKS · 64]: of number n of them
//   exp(decay since) · (k · k[n]) for tokens before the row's own, then exp(decay since) · (q · k[n]) for those up to it;
// all others are zero. x and cache are those of shaders/common/delta.glsl.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    Place at = output_place();
    int position = POSITION_OF(at.slot), base = BASE_OF(at.slot);
    int kind = at.block / (HEADS * SPAN_BLOCKS), head = at.block / SPAN_BLOCKS % HEADS;
    int first = first_seen(position), start = first + at.block % SPAN_BLOCKS * 64 + 4 * at.lane;
    int key = key_of(head), vector = (kind == 0 ? X_K : 0) + key;
    int span = position - position % SPAN;  // which begins with this token
    vec4 found = vec4(0.0);
    if (kind < 2 && start <= position) {
        float own = own_decay(at.slot, head), before = first < span ? kept_decay(base + span - 1, head) : 0.0;
        for (int n = 0; n < 4; n++) {
            int seen = start + n;
            float sum = 0.0;
            if (seen < position) {
                for (int i = 0; i < KEY_TEXELS; i++) sum += dot(given(at.slot, vector + i), kept(base + seen, key + i));
                sum *= exp(own + (seen < span ? before : 0.0) - kept_decay(base + seen, head));
            } else if (seen == position && kind == 1) {
                for (int i = 0; i < KEY_TEXELS; i++) sum += dot(given(at.slot, vector + i), given(at.slot, X_K + key + i));
            }
            found[n] = sum;
        }
    }
    y = found;
}

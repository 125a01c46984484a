#version 300 es
// The weights of the tokens that each row of a delta rule sees, both [rows, HEADS · SPAN_BLOCKS · 64]: for token n of them
//   exp(decay since) · (k · k[n]) of_key for tokens before the row's own, exp(decay since) · (q · k[n]) of_query for those up to it;
// all others are zero. x and cache are those of shaders/common/delta.glsl.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 of_key;
layout(location = 1) out vec4 of_query;

void main() {
    locate();
    int position = POSITION_OF(out_slot), base = BASE_OF(out_slot);
    int head = out_block / SPAN_BLOCKS, first = first_seen(position);
    int start = first + out_block % SPAN_BLOCKS * 64 + 4 * out_lane;
    int span = position - position % SPAN;  // the span begins with this token
    vec4 keys = vec4(0.0), queries = vec4(0.0);
    if (head < HEADS && start <= position) {
        int key = key_of(head);
        ivec4 seen = start + ivec4(0, 1, 2, 3), slots = base + min(seen, max(position - 1, 0));
        vec4 by_key = vec4(0.0), by_query = vec4(0.0);
        float by_own = 0.0;
        for (int i = 0; i < KEY_TEXELS; i++) {
            vec4 k = given(out_slot, X_K + key + i), q = given(out_slot, key + i);
            by_own += dot(q, k);
            for (int n = 0; n < 4; n++) {
                vec4 each = kept(slots[n], key + i);
                by_key[n] += dot(k, each);
                by_query[n] += dot(q, each);
            }
        }
        float own = own_decay(out_slot, head), before = first < span ? kept_decay(base + span - 1, head) : 0.0;
        for (int n = 0; n < 4; n++) {
            if (seen[n] < position) {
                float decay = exp(own + (seen[n] < span ? before : 0.0) - kept_decay(slots[n], head));
                keys[n] = by_key[n] * decay;
                queries[n] = by_query[n] * decay;
            } else if (seen[n] == position) {
                queries[n] = by_own;
            }
        }
    }
    of_key = keys;
    of_query = queries;
}

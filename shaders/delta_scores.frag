#version 300 es
// The weights of the tokens that each row of a delta rule sees, both [rows, HEADS · 64]: for token n of its window
//   exp(decay since) · (k · k[n]) of_key for tokens before the row's own, exp(decay since) · (q · k[n]) of_query for those up to it;
// all others are zero. With SCAN the first output has those of_query. x and cache are those of shaders/common/delta.glsl; tokens of
// the run are in x.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 of_key;
layout(location = 1) out vec4 of_query;

void main() {
    locate();
    int row = out_slot, head = out_block, sequence = SEQUENCE_OF(row), position = POSITION_OF(row);
    int begin = position - row + first_row(row), window = window_of(begin), start = window + 4 * out_lane;
    vec4 keys = vec4(0.0), queries = vec4(0.0);
    if (head < HEADS && start <= position) {
        int key = key_of(head), own = row - position;  // token s of the run is in row own + s
        vec4 old_keys = vec4(0.0), old_queries = vec4(0.0);
        // A loop without a step skips the other source, where llvmpipe would run a condition.
        for (int i = start < begin ? 0 : KEY_TEXELS; i < KEY_TEXELS; i++) {
            vec4 k = given(row, X_K + key + i), q = given(row, key + i);
            for (int n = 0; n < 4; n++) {
                vec4 each = kept(sequence, min(start + n, begin - 1), key + i);
                old_keys[n] += dot(k, each);
                old_queries[n] += dot(q, each);
            }
        }
        for (int i = start + 3 < begin ? KEY_TEXELS : 0; i < KEY_TEXELS; i++) {
            vec4 k = given(row, X_K + key + i), q = given(row, key + i);
            for (int n = 0; n < 4; n++) {
                vec4 each = given(own + clamp(start + n, begin, position), X_K + key + i);
                keys[n] += dot(k, each);
                queries[n] += dot(q, each);
            }
        }
        int next = window + SPAN;  // the start of the next span
        float since = own_decay(row, head), before = position < next ? 0.0 : own_decay(own + next - 1, head);
        for (int n = 0; n < 4; n++) {
            int seen = start + n;
            bool old = seen < begin;
            float reached = old ? kept_decay(sequence, seen, head) : own_decay(own + min(seen, position), head);
            float decay = exp(since + (seen < next ? before : 0.0) - reached);
            keys[n] = seen < position ? decay * (old ? old_keys[n] : keys[n]) : 0.0;
            queries[n] = seen <= position ? decay * (old ? old_queries[n] : queries[n]) : 0.0;
        }
    }
#ifdef SCAN
    keys = queries;
#endif
    of_key = keys;
    of_query = queries;
}

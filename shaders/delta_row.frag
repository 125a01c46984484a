#version 300 es
// What a delta rule keeps of each row for later tokens, y [rows, k | G | u | S]; x, cache and scores are those of
// shaders/common/delta.glsl.
//   u = beta · (v - what the state before gives for k), and S is row p % SPAN of the state at the beginning of the span of p.
// With EARLY u is left out, and so is S where it depends on rows of this run. With PIECE rows may follow each other in a
// sequence, at most so many; known (shaders/delta_recall.frag) has what tokens before them give, and the corrections of the rows
// before each are computed anew here.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
#if PIECE && !EARLY
uniform sampler2D known;
vec4 own[PIECE];

vec4 before(int row, int texel) {
    ivec2 from = block_origin(row, texel >> 4, KNOWN_TILES, KNOWN_PITCH, KNOWN_SLOT_STEP, KNOWN_BLOCK_STEP, KNOWN_COLUMNS) +
                 lane_offset(texel & 15);
    return FETCH(known, from, ivec2(KNOWN_WIDTH, KNOWN_HEIGHT));
}
#endif
layout(location = 0) out vec4 y;

float share(int row, int head) {
    return given(row, X_BETA + (head >> 2))[head & 3];
}

#if PIECE && !EARLY
// The corrections of the rows from `first` to `last`.
void correct(int first, int last, int texel) {
    int head = texel / VALUE_TEXELS, begin = POSITION_OF(first);
    for (int row = first; row <= last; row++) {
        vec4 sum = before(row, texel);
        int seen = begin - first_seen(begin + row - first);
        for (int n = 0; n < row - first; n++) sum += weight(row, 0, head, seen + n) * own[n];
        own[row - first] = share(row, head) * (given(row, X_V + texel) - sum);
    }
}
#endif

vec4 state_row(int row, int texel) {
    int position = POSITION_OF(row), base = BASE_OF(row), first = first_row(row), begin = POSITION_OF(first);
    int head = texel / VALUE_TEXELS, end = position - position % SPAN, key = position - end;
    if (end == 0 || key >= 4 * KEY_TEXELS) return vec4(0.0);
#if EARLY
    if (end > begin) return vec4(0.0);
#endif
    int start = end - SPAN, at = key_of(head) + (key >> 2);
    float last = kept_decay(base + end - 1, head);
    vec4 sum = start > 0 ? exp(last) * kept(base + start + key, C_S + texel) : vec4(0.0);
    for (int seen = start; seen < min(end, begin); seen++) {
        sum += exp(last - kept_decay(base + seen, head)) * kept(base + seen, at)[key & 3] * kept(base + seen, C_U + texel);
    }
#if PIECE && !EARLY
    if (begin < end) {
        correct(first, first + end - 1 - begin, texel);
        for (int seen = begin; seen < end; seen++) {
            sum += exp(last - kept_decay(base + seen, head)) * kept(base + seen, at)[key & 3] * own[seen - begin];
        }
    }
#endif
    return sum;
}

void main() {
    Place at = output_place();
    int texel = 16 * at.block + at.lane;
    if (texel < C_G) {
        y = given(at.slot, X_K + texel);
    } else if (texel < C_U) {
        y = given(at.slot, X_G + texel - C_G);
    } else if (texel < C_S) {
        texel -= C_U;
        y = vec4(0.0);
#if !EARLY
        if (texel < HEADS * VALUE_TEXELS) {
#if PIECE
            int first = first_row(at.slot);
            correct(first, at.slot, texel);
            y = own[at.slot - first];
#else
            vec4 sum = recalled(at.slot, X_K, 0, texel, POSITION_OF(at.slot));
            y = share(at.slot, texel / VALUE_TEXELS) * (given(at.slot, X_V + texel) - sum);
#endif
        }
#endif
    } else {
        texel -= C_S;
        y = texel < HEADS * VALUE_TEXELS ? state_row(at.slot, texel) : vec4(0.0);
    }
}

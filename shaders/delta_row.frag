#version 300 es
// The entries that a delta rule keeps of each row for later tokens, y [rows, k | G | u | S]; x, cache and scores are those of
// shaders/common/delta.glsl.
//   u = beta · (v - the state before, times k), and S is row p % SPAN of the state at the beginning of the span of p.
// With PIECE several rows may belong to one sequence. EARLY leaves out u, and S if it depends on rows of this run, and uses
// weights from ends (shaders/delta_ends.frag) if bound; the later pass finds every other S in the cache. apart
// (shaders/delta_recall.frag) has u without the earlier rows, whose corrections are computed again, or are in the
// products of solved and carry with apart.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
#ifdef APART_WIDTH
uniform sampler2D apart;

vec4 alone(int row, int texel) {
    ivec2 from = block_origin(row, texel >> 4, APART_TILES, APART_PITCH, APART_SLOT_STEP, APART_BLOCK_STEP, APART_COLUMNS) +
                 lane_offset(texel & 15);
    return FETCH(apart, from, ivec2(APART_WIDTH, APART_HEIGHT));
}
#endif
layout(location = 0) out vec4 y;

#ifdef SOLVED_WIDTH
#include "common/delta_solved.glsl"
uniform sampler2D carry;

vec4 carried(int row, int head, int texel) {
    ivec2 from = block_origin(row, head * RUN_BLOCKS + (texel >> 4), CARRY_TILES, CARRY_PITCH, CARRY_SLOT_STEP, CARRY_BLOCK_STEP,
                              CARRY_COLUMNS) + lane_offset(texel & 15);
    return FETCH(carry, from, ivec2(CARRY_WIDTH, CARRY_HEIGHT));
}

// The correction of row `last` among the consecutive rows from `first` on.
vec4 correction(int first, int last, int texel) {
    int head = texel / VALUE_TEXELS;
    vec4 sum = vec4(0.0), weights = inverted(last, head, first >> 2);
    for (int row = first; row <= last; row++) {
        if ((row & 3) == 0) weights = inverted(last, head, row >> 2);
        sum += weights[row & 3] * alone(row, texel);
    }
    return sum;
}

// The sum that rows `first` to `last` of the run add to the row of the state that row `to` keeps.
vec4 added(int to, int first, int last, int texel) {
    int head = texel / VALUE_TEXELS;
    vec4 sum = vec4(0.0);
    for (int row = first; row <= last; row++) sum += carried(to, head, row >> 2)[row & 3] * alone(row, texel);
    return sum;
}
#elif PIECE && !EARLY
vec4 own[PIECE];

// The corrections of the rows from `first` to `last`.
void correct(int first, int last, int texel) {
    int head = texel / VALUE_TEXELS;
    for (int row = first; row <= last; row++) {
        int from = own_number(row) - row + first;
        vec4 sum = vec4(0.0);
        for (int n = 0; n < row - first; n++) sum += weight(row, head, from + n) * own[n];
        own[row - first] = alone(row, texel) - share(row, head) * sum;
    }
}

vec4 correction(int first, int last, int texel) {
    correct(first, last, texel);
    return own[last - first];
}

vec4 added(int to, int first, int last, int texel) {
    correct(first, last, texel);
    int head = texel / VALUE_TEXELS, key = POSITION_OF(to) % SPAN, at = X_K + key_of(head) + (key >> 2);
    vec4 sum = vec4(0.0);
    for (int row = first; row <= last; row++) {
        sum += exp(own_decay(last, head) - own_decay(row, head)) * given(row, at)[key & 3] * own[row - first];
    }
    return sum;
}
#endif

#ifdef ENDS_WIDTH
uniform sampler2D ends;

// The sum that the tokens of the span before a row's add to its row of the state.
vec4 ended(int row, int slot, int head, int texel) {
    vec4 sum = vec4(0.0);
    for (int n = 0; n < SPAN; n += 4) {
        ivec2 from = block_origin(row, head * END_BLOCKS + (n >> 6), ENDS_TILES, ENDS_PITCH, ENDS_SLOT_STEP, ENDS_BLOCK_STEP,
                                  ENDS_COLUMNS) + lane_offset((n >> 2) & 15);
        vec4 each = FETCH(ends, from, ivec2(ENDS_WIDTH, ENDS_HEIGHT));
        for (int i = 0; i < 4; i++) sum += each[i] * kept(slot + n + i, C_U + texel);
    }
    return sum;
}
#endif

vec4 state_row(int row, int texel) {
    int position = POSITION_OF(row), base = BASE_OF(row), first = first_row(row), begin = POSITION_OF(first);
    int head = texel / VALUE_TEXELS, end = position - position % SPAN, key = position - end;
    if (end == 0 || key >= 4 * KEY_TEXELS) return vec4(0.0);
#if EARLY
    if (end > begin) return vec4(0.0);
#elif PIECE
    if (end <= begin) return kept(base + position, C_S + texel);
#endif
    int start = end - SPAN, at = key_of(head) + (key >> 2);
    float last = kept_decay(base + end - 1, head);
    vec4 sum = start > 0 ? exp(last) * kept(base + start + key, C_S + texel) : vec4(0.0);
#ifdef ENDS_WIDTH
    return sum + ended(row, base + start, head, texel);
#endif
    for (int seen = start; seen < min(end, begin); seen++) {
        sum += exp(last - kept_decay(base + seen, head)) * kept(base + seen, at)[key & 3] * kept(base + seen, C_U + texel);
    }
#if PIECE && !EARLY
    sum += added(row, first, first + end - 1 - begin, texel);
#endif
    return sum;
}

vec4 corrected(int row, int texel) {
#if EARLY
    return vec4(0.0);
#elif PIECE
    return correction(first_row(row), row, texel);
#else
    vec4 sum = recalled(row, X_K, texel, POSITION_OF(row));
    return share(row, texel / VALUE_TEXELS) * (given(row, X_V + texel) - sum);
#endif
}

void main() {
    locate();
    int texel = 16 * out_block + out_lane;
    y = vec4(0.0);
    if (texel < C_G) {
        y = given(out_slot, X_K + texel);
    } else if (texel < C_U) {
        y = given(out_slot, X_G + texel - C_G);
    } else if (texel < C_S) {
        texel -= C_U;
        if (texel < HEADS * VALUE_TEXELS) y = corrected(out_slot, texel);
    } else {
        texel -= C_S;
        if (texel < HEADS * VALUE_TEXELS) y = state_row(out_slot, texel);
    }
}

#version 300 es
// Reads the state of a delta rule. With QUERIES y [rows, values] has the results: the state of all tokens up to the row's own,
// times its query. Otherwise y [rows, k | G | u] has rows of the cache with u = beta · (v - state · key), with the state of the
// tokens before the first of the consecutive rows that end at this row.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
uniform sampler2D state0, state1;
layout(location = 0) out vec4 y;

#define STATE_AT(slot, texel) \
    texel_position(slot, texel, STATE0_TILES, STATE0_PITCH, STATE0_SLOT_STEP, STATE0_BLOCK_STEP, STATE0_COLUMNS)
// Adds the state of even or odd spans; a loop without a step skips the other one, where llvmpipe would run a condition.
#define ADD_STATE(state, parity) \
    for (int i = window > 0 && (window / SPAN & 1) == parity ? 0 : KEY_TEXELS; i < KEY_TEXELS; i++) { \
        vec4 each = given(row, vector + i); \
        for (int n = 0; n < 4; n++) { \
            sum += each[n] * FETCH(state, STATE_AT(sequence * STATE_ROWS + 4 * i + n, texel), ivec2(STATE0_WIDTH, STATE0_HEIGHT)); \
        } \
    }

// The state before token `stop`, times the vector of a row of x that begins at texel `vector`: four elements of the
// values, at texel `texel` over all heads.
vec4 recalled(int row, int begin, int vector, int texel, int stop) {
    int sequence = SEQUENCE_OF(row), position = POSITION_OF(row), head = texel / VALUE_TEXELS, window = window_of(begin);
    int last = window + SPAN - 1;  // of the window's first span
    vec4 sum = vec4(0.0);
    vector += key_of(head);
    ADD_STATE(state0, 0)
    ADD_STATE(state1, 1)
    sum *= exp(own_decay(row, head) + (position > last ? own_decay(row - position + last, head) : 0.0));
    int count = stop - window, n = 0;
    for (; n + 4 <= count; n += 4) {
        vec4 each = weights(row, head, n >> 2);
        for (int i = 0; i < 4; i++) sum += each[i] * kept(sequence, window + n + i, C_U + texel);
    }
    if (n < count) {
        vec4 each = weights(row, head, n >> 2);
        for (int i = 0; n + i < count; i++) sum += each[i] * kept(sequence, window + n + i, C_U + texel);
    }
    return sum;
}

void main() {
    locate();
    int row = out_slot, texel = 16 * out_block + out_lane, position = POSITION_OF(row), begin = position - row + first_row(row);
    y = vec4(0.0);
#if QUERIES
    if (texel < HEADS * VALUE_TEXELS) y = recalled(row, begin, 0, texel, position + 1);
#else
    if (texel < C_G) {
        y = given(row, X_K + texel);
    } else if (texel < C_U) {
        y = given(row, X_G + texel - C_G);
    } else if (texel < C_U + HEADS * VALUE_TEXELS) {
        texel -= C_U;
        y = share(row, texel / VALUE_TEXELS) * (given(row, X_V + texel) - recalled(row, begin, X_K, texel, begin));
    }
#endif
}

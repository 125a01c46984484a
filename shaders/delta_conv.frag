#version 300 es
// Queries, keys and values of a delta rule, and its decays: y [rows, q | k | v | G | beta], each from a whole block on.
// x has the channels q | k | v of each row, the inputs of its decay from block DECAY_BLOCK on, and of its written share from
// block SHARE_BLOCK on; the ring inputs has the channels of the tokens before the run. Channels are convolved over LENGTH tokens with taps [LENGTH, channels],
// then passed through SiLU; with UNIT heads of q and k are divided by sqrt(Σ x² + EPS), and q multiplied by SCALE.
// G = Σ rate · softplus(a + shift) over the tokens of the span up to the row's own, with rate and shift in the rows of
// decay; cache has it for tokens before the run. beta = sigmoid(b), or with SCAN softplus(a + shift). With BIASED the row of
// taps after the last one is added.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
#include "common/activation.glsl"
#include "common/softplus.glsl"
uniform sampler2D inputs, taps, decay;
layout(location = 0) out vec4 y;

vec4 tap(int k, int texel) {
    return FETCH(taps, ivec2(k / TAPS_STACK * TAPS_TEXELS + texel, k % TAPS_STACK), ivec2(TAPS_WIDTH, TAPS_HEIGHT));
}

vec4 of_heads(int row, int texel) {
    return FETCH(decay, ivec2(row / DECAY_STACK * DECAY_TEXELS + texel, row % DECAY_STACK), ivec2(DECAY_WIDTH, DECAY_HEIGHT));
}

vec4 channel(int row, int begin, int sequence, int texel) {
#ifdef BIASED
    vec4 sum = tap(LENGTH, texel);
#else
    vec4 sum = vec4(0.0);
#endif
    int start = POSITION_OF(row) - LENGTH + 1;  // the token of the first tap
    for (int token = max(start, 0); token < begin; token++) {
        int slot = sequence * INPUT_RING + token % INPUT_RING;
        ivec2 from = texel_position(slot, texel, INPUTS_TILES, INPUTS_PITCH, INPUTS_SLOT_STEP, INPUTS_BLOCK_STEP, INPUTS_COLUMNS);
        sum += tap(token - start, texel) * FETCH(inputs, from, ivec2(INPUTS_WIDTH, INPUTS_HEIGHT));
    }
    for (int token = max(start, begin); token < start + LENGTH; token++) {
        sum += tap(token - start, texel) * given(row - LENGTH + 1 + token - start, texel);
    }
    return silu(sum);
}

void main() {
    locate();
    int row = out_slot, position = POSITION_OF(row), sequence = SEQUENCE_OF(row), texel = 16 * out_block + out_lane;
    int first = first_row(row), begin = position - row + first;
    y = vec4(0.0);
    if (texel < X_V) {
        int part = texel / X_K, inside = texel - part * X_K, keys = KEY_HEADS * KEY_TEXELS;
#if UNIT
        if (inside < keys) {
            float squares = 0.0;
            for (int i = 0; i < KEY_TEXELS; i++) {
                vec4 each = channel(row, begin, sequence, part * keys + inside - inside % KEY_TEXELS + i);
                squares += dot(each, each);
            }
            y = channel(row, begin, sequence, part * keys + inside) * inversesqrt(squares + float(EPS));
            if (part == 0) y *= float(SCALE);
        }
#else
        if (inside < keys) y = channel(row, begin, sequence, part * keys + inside);
#endif
    } else if (texel < X_G) {
        int inside = texel - X_V;
        if (inside < HEADS * VALUE_TEXELS) y = channel(row, begin, sequence, 2 * KEY_HEADS * KEY_TEXELS + inside);
    } else if (texel < X_BETA) {
        int inside = texel - X_G;
        if (4 * inside < HEADS) {
            int start = position - position % SPAN;
            if (start < begin) y = kept(sequence, begin - 1, C_G + inside);
            for (int seen = max(first, row - position + start); seen <= row; seen++) {
                y += of_heads(0, inside) * softplus(given(seen, 16 * DECAY_BLOCK + inside) + of_heads(1, inside));
            }
        }
    } else {
        int inside = texel - X_BETA;
#ifdef SCAN
        vec4 share = softplus(given(row, 16 * SHARE_BLOCK + inside) + of_heads(1, min(inside, DECAY_TEXELS - 1)));
#else
        vec4 share = 1.0 / (1.0 + exp(-max(given(row, 16 * SHARE_BLOCK + inside), -88.0)));
#endif
        y = mix(vec4(0.0), share, lessThan(4 * inside + ivec4(0, 1, 2, 3), ivec4(HEADS)));
    }
}

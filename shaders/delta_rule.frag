#version 300 es
// The gated delta rule, a linear attention with a matrix S [D_K, D_V] for each head of values. Token after token, from zeros at
// the first row of each sequence:
//   S = exp(g) · S;  S = S + k ⊗ beta · (v - Sᵀ k), or with SCAN S = S + k ⊗ beta · v;  y = SCALE · Sᵀ q.
// q, k [rows · KEY_HEADS, D_K]; v, y [rows · HEADS, D_V]; g, beta [rows, HEADS]; SEQUENCE rows a sequence. HEADS / KEY_HEADS heads
// of values share one of keys: consecutive ones, or if IN_TURN is 1 those KEY_HEADS apart. With NORMALIZE q and k are
// divided by sqrt(Σ x² + EPS). A fragment computes four columns of S for all tokens up to its own.
#include "common/flat.glsl"
#include "common/elements.glsl"
uniform sampler2D q, k, v, g, beta;
layout(location = 0) out vec4 y;

float scalar(sampler2D from, int row, int head, ivec3 shape) {
    return picked(TEXEL(from, row * shape.x + (head >> 2), shape.y, shape.z), head);
}

// The factor of a vector.
float factor(float squares) {
#if NORMALIZE
    return inversesqrt(squares + float(EPS));
#else
    return 1.0;
#endif
}

void main() {
    ivec2 at = output_place();
    int row = at.x / HEADS, head = at.x % HEADS, key_head = IN_TURN == 1 ? head % KEY_HEADS : head / (HEADS / KEY_HEADS);
    vec4 state[4 * K_TEXELS];
    for (int i = 0; i < 4 * K_TEXELS; i++) state[i] = vec4(0.0);
    for (int token = row - row % SEQUENCE; token <= row; token++) {
        int key = (token * KEY_HEADS + key_head) * K_TEXELS;
        float decay = exp(scalar(g, token, head, ivec3(G_TEXELS, G_WIDTH, G_HEIGHT)));
        float rate = scalar(beta, token, head, ivec3(BETA_TEXELS, BETA_WIDTH, BETA_HEIGHT));
        vec4 known = vec4(0.0);
        float squares = 0.0;
        for (int i = 0; i < K_TEXELS; i++) {
            vec4 each = TEXEL(k, key + i, K_WIDTH, K_HEIGHT);
            squares += dot(each, each);
            for (int n = 0; n < 4; n++) {
                state[4 * i + n] *= decay;
                known += state[4 * i + n] * each[n];
            }
        }
        float norm = factor(squares);
        vec4 value = TEXEL(v, (token * HEADS + head) * V_TEXELS + at.y, V_WIDTH, V_HEIGHT);
#ifdef SCAN
        vec4 change = rate * norm * value;
#else
        vec4 change = rate * norm * (value - known * norm);
#endif
        for (int i = 0; i < K_TEXELS; i++) {
            vec4 each = TEXEL(k, key + i, K_WIDTH, K_HEIGHT);
            for (int n = 0; n < 4; n++) state[4 * i + n] += each[n] * change;
        }
    }
    int query = (row * KEY_HEADS + key_head) * K_TEXELS;
    vec4 sum = vec4(0.0);
    float squares = 0.0;
    for (int i = 0; i < K_TEXELS; i++) {
        vec4 each = TEXEL(q, query + i, Q_WIDTH, Q_HEIGHT);
        squares += dot(each, each);
        for (int n = 0; n < 4; n++) sum += state[4 * i + n] * each[n];
    }
    y = trimmed(float(SCALE) * factor(squares) * sum, at.y, OUT_COLS);
}

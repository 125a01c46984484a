#version 300 es
// Attention in one pass, without a matrix of scores: y[row] = softmax(SCALE · q[row] · k) · v. The softmax is online (Milakov
// and Gimelshein 2018; Dao et al. 2022): the loop keeps a peak and a sum, and rescales the sums at each higher score.
// q [matrices · QUERIES, D], matrices being HEADS heads of each sequence; k [kv matrices · KEYS, D] and v […, E] have
// KV_HEADS heads of each, shared by HEADS / KV_HEADS queries' heads. With CAUSAL query r sees keys up to offset + r.
// A fragment computes ROWS texels of a row, texel ROWS · c + i in target i; shaders/weave.frag joins the targets.
// With PARTS > 1 it reads one of PARTS parts of the keys, PART_KEYS of them. The parts are stacked, and each row
// has one more texel at its end with the part's peak and sum, by which weave.frag joins the parts.
#include "common/flat.glsl"
#include "common/each_row.glsl"
uniform sampler2D q;
uniform sampler2D k;
uniform sampler2D v;
#ifdef CAUSAL
uniform int offset;
#endif
EACH_ROW(DECLARE_TARGET)
const float MASKED = -3.4028234663852886e38;  // the least finite number

#define K(i) TEXEL(k, keys[i] * K_TEXELS + column, K_WIDTH, K_HEIGHT)
#define BEGIN(n, X, R, Y, V, A, B, C, D, E, F, S) \
    vec4 A = vec4(0.0); \
    int S = min(ROWS * at.y + n, V_TEXELS - 1);
#define V_AT(i, S) TEXEL(v, keys[i] * V_TEXELS + S, V_WIDTH, V_HEIGHT)
#define GATHER(n, X, R, Y, V, A, B, C, D, E, F, S) \
    A = A * shrunk + ((w.x * V_AT(0, S) + w.y * V_AT(1, S)) + (w.z * V_AT(2, S) + w.w * V_AT(3, S)));
#if PARTS > 1
#define STORE(n, X, R, Y, V, A, B, C, D, E, F, S) Y = ROWS * at.y + n == V_TEXELS ? vec4(peak, total, 0.0, 0.0) : A;
#else
#define STORE(n, X, R, Y, V, A, B, C, D, E, F, S) Y = A / total;
#endif

void main() {
    ivec2 at = output_place();
#if PARTS > 1
    int row = at.x % Q_ROWS, start = at.x / Q_ROWS * PART_KEYS;
#else
    int row = min(at.x, Q_ROWS - 1);
    const int start = 0;
#endif
    int matrix = row / QUERIES, query = row * Q_TEXELS;
    int first = ((matrix / HEADS) * KV_HEADS + (matrix % HEADS) / (HEADS / KV_HEADS)) * KEYS;
#ifdef CAUSAL
    int last = min(row % QUERIES + offset, KEYS - 1);
#else
    const int last = KEYS - 1;
#endif
#if PARTS > 1
    int end = min(start + PART_KEYS - 1, last);
#else
    int end = last;
#endif
    float peak = MASKED, total = 0.0;
    EACH_ROW(BEGIN)
    for (int key = start; key <= end; key += 4) {
        ivec4 next = key + ivec4(0, 1, 2, 3);
        ivec4 keys = first + min(next, ivec4(end));  // rows that the query does not see may have any values
        vec4 score = vec4(0.0);
        for (int column = 0; column < Q_TEXELS; column++) {
            vec4 a = TEXEL(q, query + column, Q_WIDTH, Q_HEIGHT);
            score += vec4(dot(a, K(0)), dot(a, K(1)), dot(a, K(2)), dot(a, K(3)));
        }
        score = mix(SCALE * score, vec4(MASKED), greaterThan(next, ivec4(end)));
        float higher = max(peak, max(max(score.x, score.y), max(score.z, score.w)));
        float shrunk = exp(peak - higher);
        vec4 w = exp(score - higher);
        total = total * shrunk + dot(w, vec4(1.0));
        EACH_ROW(GATHER)
        peak = higher;
    }
    EACH_ROW(STORE)
}

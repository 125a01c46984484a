#version 300 es
// ROWS products at once: y[r, o] = activation(norm · sum over i of weight[o, i] · x[r, i] + bias[o]) + residual[r, o];
// a fragment computes four outputs o of the ROWS rows r of one slot. Everything else, and every sum's order, is that
// of shaders/gemv.frag: a row gives the same numbers here and there.
// With NORM the norm is taken along in the loop, with NORMS it is what shaders/row_norms.frag has left.
// Row ROWS · slot + n lies in slot `slot` of texture n (x, residual and y), or with TOGETHER in slot ROWS · slot + n of
// the one texture x.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/unpack.glsl"
#include "common/activation.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
#define X_SIZE ivec2(X_WIDTH, X_HEIGHT)
#define WEIGHT_SIZE ivec2(WEIGHT_WIDTH, WEIGHT_HEIGHT)
#define CONSTANT(i) FETCH(consts, (here + ivec2(16 * (i), 0)), ivec2(CONSTS_WIDTH, CONSTS_HEIGHT))
#if TOGETHER
uniform sampler2D x;
#else
EACH_ROW(DECLARE_INPUT)
#endif
uniform WEIGHT_SAMPLER weight;
uniform sampler2D consts;
uniform int share;
#ifdef RESIDUAL
EACH_ROW(DECLARE_SECOND)
#endif
#ifdef NORMS
uniform sampler2D norms;
#define NORMS_PLACES NORMS_TILES, NORMS_PITCH, NORMS_SLOT_STEP, NORMS_BLOCK_STEP, NORMS_COLUMNS
#endif
EACH_ROW(DECLARE_TARGET)
#ifdef PARTS
flat in int part;
#else
const int part = 0;
#endif

#if SCALED
#define BIAS_AT 4
#else
#define BIAS_AT 0
#endif

// The words of a 4×4 piece, fetched once for all rows, and its product with a texel of one row.
#define WEIGHT(a, e) FETCH(weight, (line + ivec2(8 * (PIECE * (a) + (e)), 0)), WEIGHT_SIZE)
#if PIECE == 4
#define FETCH_PIECE(a) WORDS w0 = WEIGHT(a, 0), w1 = WEIGHT(a, 1), w2 = WEIGHT(a, 2), w3 = WEIGHT(a, 3);
#define PRODUCT(V) piece(w0, w1, w2, w3, V)
#elif PIECE == 2
#define FETCH_PIECE(a) WORDS w0 = WEIGHT(a, 0), w1 = WEIGHT(a, 1);
#define PRODUCT(V) piece(w0, w1, V)
#else
#define FETCH_PIECE(a) WORDS w0 = WEIGHT(a, 0);
#define PRODUCT(V) piece(w0, V)
#endif

// One texel of every row, 4 inputs, out of the 16 of a step.
#define TEXEL(step) 2 * ivec2((step) & 1, ((step) >> 1) & 1) + member_offset
#if TOGETHER
#define FETCH_INPUT(n, X, R, Y, V, A, B, C, D, E, S) \
    V = FETCH(x, (block_origin(ROWS * at.slot + n, step >> 2, X_PLACES) + TEXEL(step)), X_SIZE);
#else
#define FETCH_INPUT(n, X, R, Y, V, A, B, C, D, E, S) V = FETCH(X, from, X_SIZE);
#endif

#define DECLARE_SUMS(n, X, R, Y, V, A, B, C, D, E, S) \
    vec4 V, A = vec4(0.0), B = vec4(0.0), C = vec4(0.0), D = vec4(0.0); float S = 0.0;
#define ADD_A(n, X, R, Y, V, A, B, C, D, E, S) A += PRODUCT(V);
#define ADD_B(n, X, R, Y, V, A, B, C, D, E, S) B += PRODUCT(V);
#define ADD_C(n, X, R, Y, V, A, B, C, D, E, S) C += PRODUCT(V);
#define ADD_D(n, X, R, Y, V, A, B, C, D, E, S) D += PRODUCT(V);
#define SQUARE(n, X, R, Y, V, A, B, C, D, E, S) S += dot(V, V);

// What is done to a row's four sums once they are whole.
#if SCALED
#define SCALE(A, B, C, D) A *= scale[0]; B *= scale[1]; C *= scale[2]; D *= scale[3];
#else
#define SCALE(A, B, C, D)
#endif
#if QUAD
#define TOTAL(A, B, C, D) quad_share(vec4[4](A, B, C, D), at.lane)
#define MEAN_SQUARE(S) quad_sum(vec4(S), at.lane).x / float(DIM)
#else
#define TOTAL(A, B, C, D) (A + B) + (C + D)
#define MEAN_SQUARE(S) S / float(DIM)
#endif
#if defined(NORM)
#define NORMALISE(n, S) total *= inversesqrt(MEAN_SQUARE(S) + float(EPS));
#elif defined(NORMS)
#define NORMALISE(n, S) total *= norm[n / 4][n % 4];
#else
#define NORMALISE(n, S)
#endif
#ifdef RESIDUAL
#define ADD_RESIDUAL(R, Y) Y += FETCH(R, ivec2(gl_FragCoord.xy), ivec2(OUT_WIDTH, OUT_HEIGHT));
#else
#define ADD_RESIDUAL(R, Y)
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, S) \
    SCALE(A, B, C, D) \
    total = TOTAL(A, B, C, D); \
    NORMALISE(n, S) \
    if (part == 0) total += bias; \
    Y = vec4(activation(total.x), activation(total.y), activation(total.z), activation(total.w)); \
    ADD_RESIDUAL(R, Y)

void main() {
    Place at = output_place();
    EACH_ROW(DECLARE_SUMS)
    int first = part * share;
    // The line of this fragment's half block and step; the words of accumulator a begin 8 · PIECE · a texels on.
    ivec2 line = ivec2((at.block / WEIGHT_STACK) * (32 * PIECE) + (at.lane & 7),
                       (2 * (at.block % WEIGHT_STACK) + (at.lane >> 3)) * STEPS + first);
    // The test comes last: llvmpipe runs a body once more, for nothing, before it sees that a test at the top has failed.
    int step = first;
    do {
#if QUAD
        ivec2 member_offset = ivec2(at.lane & 1, (at.lane >> 1) & 1);
        ivec2 from = block_origin(at.slot, step >> 2, X_PLACES) + TEXEL(step);
        EACH_ROW(FETCH_INPUT)
#ifdef NORM
        EACH_ROW(SQUARE)
#endif
        { FETCH_PIECE(0) EACH_ROW(ADD_A) }
        { FETCH_PIECE(1) EACH_ROW(ADD_B) }
        { FETCH_PIECE(2) EACH_ROW(ADD_C) }
        { FETCH_PIECE(3) EACH_ROW(ADD_D) }
#else
        for (int a = 0; a < 4; a++) {
            ivec2 member_offset = ivec2(a & 1, a >> 1);
            ivec2 from = block_origin(at.slot, step >> 2, X_PLACES) + TEXEL(step);
            EACH_ROW(FETCH_INPUT)
#ifdef NORM
            EACH_ROW(SQUARE)
#endif
            FETCH_PIECE(a)
            if (a == 0) { EACH_ROW(ADD_A) }
            if (a == 1) { EACH_ROW(ADD_B) }
            if (a == 2) { EACH_ROW(ADD_C) }
            if (a == 3) { EACH_ROW(ADD_D) }
        }
#endif
        line.y++;
        step++;
    } while (step < first + share);
    ivec2 here = ivec2((at.block / CONSTS_STACK) * (16 * (BIAS_AT + 1)) + at.lane, at.block % CONSTS_STACK);
    vec4 bias = CONSTANT(BIAS_AT), total;
#if SCALED
    vec4 scale[4] = vec4[4](CONSTANT(0), CONSTANT(1), CONSTANT(2), CONSTANT(3));
    for (int a = 0; a < 4; a++) scale[a] *= 1.0 / UNIT;
#endif
#ifdef NORMS
    vec4 norm[(ROWS + 3) / 4];
    for (int i = 0; i < (ROWS + 3) / 4; i++) {
        ivec2 from = block_origin(at.slot, 0, NORMS_PLACES) + lane_offset(4 * i + (at.lane & 3));
        norm[i] = FETCH(norms, from, ivec2(NORMS_WIDTH, NORMS_HEIGHT));
    }
#endif
    EACH_ROW(FINISH)
}

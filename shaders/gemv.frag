#version 300 es
// y[o] = activation(norm · sum over i of weight[o, i] · x[i] + bias[o]) + residual[o], one vector x, four outputs a
// fragment. With NORM, norm is 1 / sqrt(mean(x²) + EPS), the mean over DIM inputs; else 1.
// x, residual and y lie in blocks; weight and consts (bias, and with SCALED the scales) as glinfer/gl/packing.py says.
// With QUAD each fragment gathers a quarter of the inputs for all 16 outputs of its quad, and the quad adds up.
// With PARTS each instance takes its share of the STEPS, and blending adds them to what y holds already. The share is
// a uniform, not a constant: unrolled altogether the loop would be larger than a GPU's instruction cache.
#include "common/block_pass.glsl"
#include "common/unpack.glsl"
#include "common/activation.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
#define X_SIZE ivec2(X_WIDTH, X_HEIGHT)
#define WEIGHT_SIZE ivec2(WEIGHT_WIDTH, WEIGHT_HEIGHT)
#define CONSTANT(i) FETCH(consts, (here + ivec2(16 * (i), 0)), ivec2(CONSTS_WIDTH, CONSTS_HEIGHT))
uniform sampler2D x;
uniform WEIGHT_SAMPLER weight;
uniform sampler2D consts;
uniform int share;
#ifdef RESIDUAL
uniform sampler2D residual;
#endif
#ifdef PARTS
flat in int part;
#else
const int part = 0;
#endif
layout(location = 0) out vec4 y;

#if SCALED
#define BIAS_AT 4
#else
#define BIAS_AT 0
#endif
// Texels of x that a fragment takes in a step.
#if QUAD
#define TAKEN 1
#else
#define TAKEN 4
#endif

vec4 input_of(int step, int member) {
    ivec2 from = block_origin(0, step >> 2, X_PLACES) + 2 * ivec2(step & 1, (step >> 1) & 1);
    return FETCH(x, (from + ivec2(member & 1, member >> 1)), X_SIZE);
}

void main() {
    Place at = output_place();
    int member = at.lane & 3;
    vec4 sum[4] = vec4[4](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
    float squares = 0.0;
    // Asked for first, needed last.
    ivec2 here = ivec2((at.block / CONSTS_STACK) * (16 * (BIAS_AT + 1)) + at.lane, at.block % CONSTS_STACK);
    vec4 bias = CONSTANT(BIAS_AT);
#if SCALED
    vec4 scale[4] = vec4[4](CONSTANT(0), CONSTANT(1), CONSTANT(2), CONSTANT(3));
#endif
    // The line of this fragment's half block and step; the words of accumulator a begin 8 · PIECE · a texels on.
    int first = part * share;
    ivec2 line = ivec2((at.block / WEIGHT_STACK) * (32 * PIECE) + (at.lane & 7),
                       (2 * (at.block % WEIGHT_STACK) + (at.lane >> 3)) * STEPS + first);
    for (int step = first; step < first + share; step += UNROLL) {
#if UNROLL > 1
        // Everything is asked for before anything is used: the latency of memory is paid once for all of it.
        vec4 v[UNROLL * TAKEN];
        WORDS w[UNROLL * 4 * PIECE];
        for (int i = 0; i < UNROLL; i++) {
            for (int t = 0; t < TAKEN; t++) v[TAKEN * i + t] = input_of(step + i, TAKEN == 1 ? member : t);
            for (int n = 0; n < 4 * PIECE; n++) {
                w[4 * PIECE * i + n] = FETCH(weight, (line + ivec2(8 * n, i)), WEIGHT_SIZE);
            }
        }
        for (int i = 0; i < UNROLL; i++) {
            for (int a = 0; a < 4; a++) {
                vec4 from = v[TAKEN * i + (TAKEN == 1 ? 0 : a)];
                int n = 4 * PIECE * i + PIECE * a;
#if PIECE == 4
                sum[a] += piece(w[n], w[n + 1], w[n + 2], w[n + 3], from);
#elif PIECE == 2
                sum[a] += piece(w[n], w[n + 1], from);
#else
                sum[a] += piece(w[n], from);
#endif
            }
#ifdef NORM
            for (int t = 0; t < TAKEN; t++) squares += dot(v[TAKEN * i + t], v[TAKEN * i + t]);
#endif
        }
#else
        // Used as soon as fetched: llvmpipe would have to keep what waits in memory.
#define WEIGHT(a, e) FETCH(weight, (line + ivec2(8 * (PIECE * (a) + (e)), 0)), WEIGHT_SIZE)
#if QUAD
        vec4 from = input_of(step, member);
#ifdef NORM
        squares += dot(from, from);
#endif
#endif
        for (int a = 0; a < 4; a++) {
#if !QUAD
            vec4 from = input_of(step, a);
#ifdef NORM
            squares += dot(from, from);
#endif
#endif
#if PIECE == 4
            sum[a] += piece(WEIGHT(a, 0), WEIGHT(a, 1), WEIGHT(a, 2), WEIGHT(a, 3), from);
#elif PIECE == 2
            sum[a] += piece(WEIGHT(a, 0), WEIGHT(a, 1), from);
#else
            sum[a] += piece(WEIGHT(a, 0), from);
#endif
        }
#endif
        line.y += UNROLL;
    }
#if SCALED
    for (int a = 0; a < 4; a++) sum[a] *= scale[a] * (1.0 / UNIT);
#endif
#if QUAD
    vec4 total = quad_share(sum, at.lane);
#ifdef NORM
    squares = quad_sum(vec4(squares), at.lane).x;
#endif
#else
    vec4 total = (sum[0] + sum[1]) + (sum[2] + sum[3]);
#endif
#ifdef NORM
    total *= inversesqrt(squares / float(DIM) + float(EPS));
#endif
    if (part == 0) total += bias;
    y = vec4(activation(total.x), activation(total.y), activation(total.z), activation(total.w));
#ifdef RESIDUAL
    y += FETCH(residual, ivec2(gl_FragCoord.xy), ivec2(OUT_WIDTH, OUT_HEIGHT));
#endif
}

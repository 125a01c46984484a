#version 300 es
// y[o] = activation(norm · sum over i of weight[o, i] · gain[i] · x[i] + bias[o]) + residual[o], one vector x, four
// outputs a fragment. With NORM, norm is 1 / sqrt(mean(x²) + EPS), the mean over DIM inputs; otherwise it is 1. With CENTRED
// the mean of x is subtracted too, using the weights' sums. GAIN multiplies the inputs of weights that keep a file's bits.
// With GATED the matrix has two blocks for each block of outputs, y = activation(first) · second. With ROPE some outputs are
// queries and keys, whose pairs rotary positions rotate. With OUTPUT_CAP y is bounded by common/soft_cap.glsl.
// x, residual and y are in blocks. For weight and consts (bias, and with SCALED the scales) see glinfer/gl/layouts/packing.py,
// for the weights with GROUPED glinfer/gl/layouts/grouped.py.
// With QUAD each fragment sums a quarter of the inputs for all 16 outputs of its quad, and the quad exchanges the sums.
// With PARTS each instance runs its share of the STEPS, and blending adds the instances to y. Each computes the norm of all
// inputs, since it must add normalised sums. The share is a uniform and not a constant, since the whole unrolled loop
// would be larger than a GPU's instruction cache.
// With RAW y has the raw sums; the reader applies norm, bias and activation, which instances could not share.
// One more block at the end has the sum of the squares of x, and with CENTRED its sum, in each texel.
// With LORA an adapter adds to the sums, see common/low_rank.glsl; with EXPERT_BLOCKS it has ranks for each expert.
// With ROWWISE row r of x and y is in slot r. With EXPERT_BLOCKS too, each row of y has the outputs of several experts,
// EXPERT_BLOCKS blocks each; texel i of the row of choice (shaders/route.frag) names the expert of the i-th, and the
// inputs of the i-th are X_PART · i blocks further on in the row of x.
// With RAW_INPUT x was written with RAW, with alternating blocks if X_GATED; x_consts has the constants of that product.
#include "common/block_pass.glsl"
#if !GROUPED
#include "common/unpack.glsl"
#define WEIGHT_SIZE ivec2(WEIGHT_WIDTH, WEIGHT_HEIGHT)
uniform WEIGHT_SAMPLER weight;
#else
#define SHARED_BY_QUAD QUAD
#endif
#ifdef RAW_INPUT
#undef ACTIVATION
#define ACTIVATION X_ACTIVATION
#endif
#include "common/limited_gate.glsl"
#ifdef OUTPUT_CAP
#include "common/soft_cap.glsl"
#endif
#include "common/half.glsl"
#include "common/lines.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
#define X_SIZE ivec2(X_WIDTH, X_HEIGHT)
#define CONSTANT(i) FETCH(consts, (here + ivec2(16 * (i), 0)), ivec2(CONSTS_WIDTH, CONSTS_HEIGHT))
#define HALVES (1 + GATED)
// The steps for each block of outputs and each accumulator are macros: SwiftShader does not unroll loops, and reads an
// array with a computed index one number at a time.
#if GATED
#define EACH_HALF(DO) DO(0) DO(1)
#else
#define EACH_HALF(DO) DO(0)
#endif
uniform sampler2D x;
#if !defined(RAW) || SCALED || CENTRED
uniform sampler2D consts;
#endif
uniform int share;
#include "common/settled.glsl"
#ifdef GAIN
uniform sampler2D gain;
// After the last input v is zero, and the last gain is repeated.
#define GAINED(v, column) settled(v * FETCH(gain, ivec2(min(column, GAIN_WIDTH - 1), 0), ivec2(GAIN_WIDTH, 1)))
#else
#define GAINED(v, column) v
#endif
#ifdef ROPE
#include "common/rope.glsl"
uniform int position;
#endif
#ifdef LORA
#ifdef LORA_BY_ROW
#include "common/row_info.glsl"
#endif
#include "common/low_rank.glsl"
#ifdef ROWWISE
#define LORA_ROW out_slot
#else
#define LORA_ROW 0
#endif
#ifdef EXPERT_BLOCKS
#define LORA_FIRST (chosen * LORA_STEPS)
#else
#define LORA_FIRST 0
#endif
#endif
#ifdef RESIDUAL
uniform sampler2D residual;
#endif
#ifdef PARTS
flat in int part;
#else
const int part = 0;
#endif
layout(location = 0) out vec4 y;
#ifdef ROWWISE
int x_slot, x_first;  // the slot of the inputs, and their first block there
#else
#define x_slot 0
#define x_first 0
#endif
#ifdef EXPERT_BLOCKS
uniform sampler2D choice;
#define CHOICE_PLACES CHOICE_TILES, CHOICE_PITCH, CHOICE_SLOT_STEP, CHOICE_BLOCK_STEP, CHOICE_COLUMNS
#else
#define matrix_block out_block
#endif

// The texel of the bias among a block's constants.
#define BIAS_AT (4 * SCALED + CENTRED)
// Texels of x that a fragment reads at each step.
#if QUAD
#define TAKEN 1
#else
#define TAKEN 4
#endif

#ifdef RAW_INPUT
#include "common/raw_input.glsl"
float input_norm;

// The texels of four inputs, so that a fragment can start all fetches before it uses the first.
struct Input {
    vec4 sum, bias;
#if X_GATED
    vec4 second, second_bias;
#endif
};

vec4 finished(Input v) {
    vec4 y = activations(whole_sum(v.sum, input_norm, v.bias));
#if X_GATED
    y *= whole_sum(v.second, input_norm, v.second_bias);
#endif
    return y;
}

// Texel `lane` of a block of raw sums.
vec4 sum_at(int block, int lane) {
    return FETCH(x, IN_X(block_origin(0, block, X_PLACES) + lane_offset(lane)), X_SIZE);
}

Input input_at(int block, int lane) {
    Input found;
    found.sum = sum_at((1 + X_GATED) * block, lane);
    found.bias = input_bias((1 + X_GATED) * block, lane);
#if X_GATED
    found.second = sum_at(2 * block + 1, lane);
    found.second_bias = input_bias(2 * block + 1, lane);
#endif
    return found;
}

Input input_of(int step, int member) {
    return input_at(step >> 2, 4 * (step & 3) + member);
}

Input group_input(int group, int t) {
    return input_at(group >> 1, 8 * (group & 1) + t);
}
#else
#define Input vec4
#define finished(v) v

vec4 input_of(int step, int member) {
    ivec2 from = block_origin(x_slot, x_first + (step >> 2), X_PLACES) + 2 * ivec2(step & 1, (step >> 1) & 1);
    return FETCH(x, IN_X(from + ivec2(member & 1, member >> 1)), X_SIZE);
}

// Texel t, four inputs, of a group of 32.
vec4 group_input(int group, int t) {
    ivec2 from = block_origin(x_slot, x_first + (group >> 1), X_PLACES);
    return FETCH(x, IN_X(from + ivec2(2 * (t >> 2) + (t & 1), 2 * (group & 1) + ((t >> 1) & 1))), X_SIZE);
}
#endif

#if defined(RAW) || (defined(NORM) && !defined(PARTS))
#define GATHERS 1
#else
#define GATHERS 0
#endif
#if defined(NORM) && defined(PARTS)
// Steps of 16 inputs whose texels are fetched together; there are whole blocks of four.
#define AHEAD 4
#if QUAD
#define MEMBERS 1
#else
#define MEMBERS 4
#endif

// The sum of squares (x) and the sum (y) of all inputs, or with QUAD of one member's inputs.
vec2 gathered_of(int member) {
    vec2 found = vec2(0.0);
    for (int step = 0; step < 4 * X_BLOCKS; step += AHEAD) {
        vec4 v[AHEAD * MEMBERS];
        for (int i = 0; i < AHEAD * MEMBERS; i++) v[i] = input_of(step + i / MEMBERS, MEMBERS == 1 ? member : i % MEMBERS);
        for (int i = 0; i < AHEAD * MEMBERS; i++) {
            found += vec2(dot(v[i], v[i]), settled((v[i].x + v[i].y) + (v[i].z + v[i].w)));
        }
    }
    return found;
}
#endif

// The line of this fragment's half block of the matrix, at a step or round.
int line_of(int block, int lane, int step) {
    return (2 * block + (lane >> 3)) * STEPS + step;
}

#define WEIGHT_LINE(n, words) (line_at(n, WEIGHT_COLUMNS, 8 * (words)) + ivec2(out_lane & 7, 0))

#if GROUPED
#define TURNS (16 - 12 * QUAD)
#define HIGH_TEXEL(n) high[4 * FORM_HIGH * h + (n)]
#include "common/grouped.glsl"
#endif

void main() {
    locate();
    int member = out_lane & 3;
#ifdef ROWWISE
    x_slot = out_slot;
    x_first = 0;
#endif
#ifdef EXPERT_BLOCKS
    int chosen = out_block / EXPERT_BLOCKS;
    ivec2 place = block_origin(out_slot, chosen >> 4, CHOICE_PLACES) + lane_offset(chosen & 15);
    float expert = FETCH(choice, place, ivec2(CHOICE_WIDTH, CHOICE_HEIGHT)).x;
    int matrix_block = int(expert + 0.5) * EXPERT_BLOCKS + out_block % EXPERT_BLOCKS;
    x_first = chosen * X_PART;
#endif
#ifdef RAW
    bool gathers = out_block >= OUT_BLOCKS - 1;
    out_block = min(out_block, OUT_BLOCKS - 2);
#endif
#ifdef RAW_INPUT
    input_norm = input_norm_of(sum_at(X_BLOCKS - 1, 0));
#endif
    vec4 sum[4 * HALVES];
#define START(h) sum[4 * h] = sum[4 * h + 1] = sum[4 * h + 2] = sum[4 * h + 3] = vec4(0.0);
    EACH_HALF(START)
    float squares = 0.0, whole = 0.0;
    int first = part * share;
    // Fetched first, used last.
#ifndef RAW
    vec4 bias[HALVES];
#endif
#if CENTRED
    vec4 sums[HALVES];
#endif
#if SCALED
    vec4 scale[4 * HALVES];
#endif
#ifdef RAW
#define FETCH_BIAS(h)
#else
#define FETCH_BIAS(h) bias[h] = CONSTANT(BIAS_AT);
#endif
#if CENTRED
#define FETCH_SUMS(h) sums[h] = CONSTANT(BIAS_AT - 1);
#else
#define FETCH_SUMS(h)
#endif
#if SCALED
#define FETCH_SCALES(h) \
    scale[4 * h] = CONSTANT(0); scale[4 * h + 1] = CONSTANT(1); scale[4 * h + 2] = CONSTANT(2); scale[4 * h + 3] = CONSTANT(3);
#else
#define FETCH_SCALES(h)
#endif
#define FETCH_CONSTANTS(h) { \
        ivec2 here = line_at(HALVES * matrix_block + h, CONSTS_COLUMNS, 16 * (BIAS_AT + 1)) + ivec2(out_lane, 0); \
        FETCH_BIAS(h) FETCH_SUMS(h) FETCH_SCALES(h) \
    }
    EACH_HALF(FETCH_CONSTANTS)
#define START_LINE(h) lines[h] = line_of(HALVES * matrix_block + h, out_lane, first);
#if GROUPED
    int lines[HALVES];
    EACH_HALF(START_LINE)
    Scales scales[4 * HALVES];
#if FORM_HIGH
    uvec4 high[4 * FORM_HIGH * HALVES];
#endif
    // A loop over words 0 to 3 of a group, or of four groups: an unrolled round would exceed a CPU's instruction
    // cache.
    int turn = TURNS * first, turns = TURNS * (first + share);
    do {
        int w = turn & 3;
        ivec2 starts[HALVES];
        for (int h = 0; h < HALVES; h++) starts[h] = WEIGHT_LINE(lines[h], LINE_TEXELS);
        if ((turn & (TURNS - 1)) == 0) {
            for (int h = 0; h < HALVES; h++) {
                ivec2 line = starts[h];
                for (int a = 0; a < 4; a++) scales[4 * h + a] = SCALES_OF(a);
#if FORM_HIGH
                for (int n = 0; n < 4 * FORM_HIGH; n++) high[4 * FORM_HIGH * h + n] = LINE_TEXEL(HIGH_AT + n);
#endif
            }
        }
#if QUAD
        int group = turn - w + member;
#else
        int group = turn >> 2;
#endif
        // Numbers after the last input have scale zero, and their inputs must be finite.
        int from = min(group, GROUPS - 1);
        vec4 v = finished(group_input(from, w)), e = finished(group_input(from, 4 + w));
#if GATHERS
        // In the order of shaders/gemm.frag and shaders/row_norms.frag.
        if (group < GROUPS) {
            squares += dot(v, v);
            squares += dot(e, e);
#if CENTRED
            whole += settled((v.x + v.y) + (v.z + v.w));
            whole += settled((e.x + e.y) + (e.z + e.w));
#endif
        }
#endif
        v = GAINED(v, 8 * from + w);
        e = GAINED(e, 8 * from + 4 + w);
        for (int h = 0; h < HALVES; h++) {
            ivec2 line = starts[h];
            for (int a = 0; a < 4; a++) {
#if !QUAD
                if (a != (group & 3)) continue;
#endif
                Scales s = scales[4 * h + a];
                DECLARE_HIGH(a)
                DECLARE_WORDS(a, w)
                sum[4 * h + a] += GROUP_TIMES(w, s, v, e);
#if HAS_LEAST
                sum[4 * h + a] += LEAST_TIMES(s, sum_of(v), sum_of(e));
#endif
            }
        }
        turn++;
        if ((turn & (TURNS - 1)) == 0) {
            for (int h = 0; h < HALVES; h++) lines[h]++;
        }
    } while (turn < turns);
#else
    // The words of accumulator a begin 8 · PIECE · a texels on.
    int lines[HALVES];
    EACH_HALF(START_LINE)
    for (int step = first; step < first + share; step += UNROLL) {
#if UNROLL > 1
        // All fetches come before the first use, to wait for memory once.
        Input v[UNROLL * TAKEN];
        WORDS w[UNROLL * 4 * PIECE * HALVES];
        for (int i = 0; i < UNROLL; i++) {
            for (int t = 0; t < TAKEN; t++) v[TAKEN * i + t] = input_of(step + i, TAKEN == 1 ? member : t);
            ivec2 line[HALVES];
            for (int h = 0; h < HALVES; h++) line[h] = WEIGHT_LINE(lines[h] + i, 4 * PIECE);
            for (int n = 0; n < 4 * PIECE * HALVES; n++) {
                w[4 * PIECE * HALVES * i + n] =
                    FETCH(weight, (line[n / (4 * PIECE)] + ivec2(8 * (n % (4 * PIECE)), 0)), WEIGHT_SIZE);
            }
        }
        for (int i = 0; i < UNROLL; i++) {
            vec4 u[TAKEN];
            for (int t = 0; t < TAKEN; t++) {
                vec4 from = finished(v[TAKEN * i + t]);
#if GATHERS
                squares += dot(from, from);
#if CENTRED
                whole += settled((from.x + from.y) + (from.z + from.w));
#endif
#endif
                u[t] = GAINED(from, 4 * (step + i) + (TAKEN == 1 ? member : t));
            }
            for (int a = 0; a < 4 * HALVES; a++) {
                vec4 from = u[TAKEN == 1 ? 0 : a & 3];
                int n = 4 * PIECE * HALVES * i + PIECE * a;
#if PIECE == 4
                sum[a] = with_piece(sum[a], w[n], w[n + 1], w[n + 2], w[n + 3], from);
#elif PIECE == 2
                sum[a] = with_piece(sum[a], w[n], w[n + 1], from);
#else
                sum[a] = with_piece(sum[a], w[n], from);
#endif
            }
        }
#else
        // Each texel is used as soon as it is fetched, since llvmpipe would spill waiting texels to memory.
#define WEIGHT(h, a, e) FETCH(weight, (line[h] + ivec2(8 * (PIECE * (a) + (e)), 0)), WEIGHT_SIZE)
#if GATHERS
#define GATHER(v) squares += dot(v, v); CENTRE(v)
#else
#define GATHER(v)
#endif
#if CENTRED
#define CENTRE(v) whole += settled((v.x + v.y) + (v.z + v.w));
#else
#define CENTRE(v)
#endif
#if PIECE == 4
#define PIECE_OF(h, a) WEIGHT(h, a, 0), WEIGHT(h, a, 1), WEIGHT(h, a, 2), WEIGHT(h, a, 3)
#elif PIECE == 2
#define PIECE_OF(h, a) WEIGHT(h, a, 0), WEIGHT(h, a, 1)
#else
#define PIECE_OF(h, a) WEIGHT(h, a, 0)
#endif
#define ADD_PIECE(h, a) sum[4 * h + a] = with_piece(sum[4 * h + a], PIECE_OF(h, a), from);
#if GATED
#define ADD_PIECES(a) ADD_PIECE(0, a) ADD_PIECE(1, a)
#else
#define ADD_PIECES(a) ADD_PIECE(0, a)
#endif
#define TAKE_INPUT(member) \
    from = finished(input_of(step, member)); \
    GATHER(from) \
    from = GAINED(from, 4 * step + member);
        ivec2 line[HALVES];
#define FIND_LINE(h) line[h] = WEIGHT_LINE(lines[h], 4 * PIECE);
        EACH_HALF(FIND_LINE)
        vec4 from;
#if QUAD
        TAKE_INPUT(member)
        ADD_PIECES(0) ADD_PIECES(1) ADD_PIECES(2) ADD_PIECES(3)
#else
        TAKE_INPUT(0) ADD_PIECES(0)
        TAKE_INPUT(1) ADD_PIECES(1)
        TAKE_INPUT(2) ADD_PIECES(2)
        TAKE_INPUT(3) ADD_PIECES(3)
#endif
#endif
#define NEXT_LINES(h) lines[h] += UNROLL;
        EACH_HALF(NEXT_LINES)
    }
#endif
#if defined(NORM) || defined(RAW)
#if !GATHERS
    vec2 all = gathered_of(member);
    squares = all.x;
    whole = all.y;
#endif
#if QUAD
    vec4 gathered = quad_sum(vec4(squares, whole, 0.0, 0.0), out_lane);
    squares = gathered.x;
    whole = gathered.y;
#endif
#endif
#if CENTRED
    float mean = whole / float(DIM);
#endif
#ifdef NORM
#if CENTRED
    // The sum of the squares of x - mean.
    float norm = inversesqrt(max(squares / float(DIM) - mean * mean, 0.0) + float(EPS));
#else
    float norm = inversesqrt(squares / float(DIM) + float(EPS));
#endif
#endif
    vec4 totals[HALVES], found[4 * HALVES] = sum;
    for (int h = 0; h < HALVES; h++) {
        vec4 own[4] = vec4[4](found[4 * h], found[4 * h + 1], found[4 * h + 2], found[4 * h + 3]);
#if SCALED
        for (int a = 0; a < 4; a++) own[a] *= scale[4 * h + a] * (1.0 / UNIT);
#endif
#if QUAD
        vec4 total = quad_share(own, out_lane);
#else
        vec4 total = (own[0] + own[1]) + (own[2] + own[3]);
#endif
#ifdef LORA
        if (part == 0) total += low_rank(HALVES * matrix_block + h, out_lane, LORA_ROW, ADAPTER_OF(LORA_ROW), LORA_FIRST);
#endif
#if CENTRED
#ifdef RAW
        total -= mean * sums[h];  // for the inputs of this instance's share
#else
        if (part == 0) total -= mean * sums[h];
#endif
#endif
#ifdef NORM
        total *= norm;
#endif
#ifndef RAW
        if (part == 0) total += bias[h];
#if defined(LORA) && LORA_BIASED
        if (part == 0) total += low_rank_bias(HALVES * matrix_block + h, out_lane, ADAPTER_OF(LORA_ROW));
#endif
#endif
        totals[h] = total;
    }
#ifdef RAW
    y = gathers ? vec4(squares, whole, 0.0, 0.0) : totals[0];
    return;
#elif defined(RAW_INPUT)
    y = totals[0];
#else
#if GATED
    y = gated(totals[0], totals[1]);
#else
    y = activations(totals[0]);
#endif
#ifdef OUTPUT_CAP
    y = soft_capped(y, float(OUTPUT_CAP));
#endif
#endif
#ifdef ROPE
    y = turned(y, 16 * out_block + out_lane, position);
#endif
#ifdef RESIDUAL
    y += FETCH(residual, IN_RESIDUAL(OUT_TEXEL), RESIDUAL_SIZE);
#endif
    y = stored(y);
}

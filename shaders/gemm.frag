#version 300 es
// ROWS products at once: y[r, o] = activation(norm · sum over i of weight[o, i] · gain[i] · x[r, i] + bias[o]) +
// residual[r, o]; a fragment computes four outputs o of the ROWS rows r of one slot, and every row gets the same numbers
// whatever ROWS is. With NORM, norm is 1 / sqrt(mean(x²) + EPS), the mean over DIM inputs; with NORMS it is read from the
// output of shaders/row_norms.frag; otherwise it is 1. With CENTRED the mean of x is subtracted too, using the weights'
// sums. GAIN multiplies the inputs of weights that keep a file's bits. With GATED the matrix has two blocks for each block of
// outputs, y = activation(first) · second. With ROPE some outputs are queries and keys, whose pairs rotary positions rotate.
// With OUTPUT_CAP y is bounded by common/soft_cap.glsl. With LORA an adapter adds to the sums, see common/low_rank.glsl.
// x, residual and y are in blocks. For weight and consts (bias, and with SCALED the scales) see glinfer/gl/layouts/packing.py,
// for the weights with GROUPED glinfer/gl/layouts/grouped.py.
// Row ROWS · slot + n is in slot `slot` of texture n (x, residual and y), or with TOGETHER in slot ROWS · slot + n of
// the one texture x. With ALONE there is one row, in slot 0 of x, at the run's position.
// With QUAD each fragment sums a quarter of the inputs for all 16 outputs of its quad, and the quad exchanges the sums.
// With PARTS each instance runs its share of the STEPS, and blending adds the instances to y. Each computes the norm of all
// inputs, since it must add normalised sums. The share is a uniform and not a constant, since the whole unrolled loop
// would be larger than a GPU's instruction cache.
// With RAW y has the raw sums; the reader applies norm, bias and activation, which instances could not share.
// One more block at the end has the sum of the squares of x, and with CENTRED its sum, in each texel.
// With RAW_INPUT x was written with RAW, with alternating blocks if X_GATED; x_consts has the constants of that product.
// With EXPERT_BLOCKS the matrix stacks those of all experts, EXPERT_BLOCKS blocks of outputs each. With X_PART each row of y has
// the outputs of several experts; texel i of the row of choice (shaders/route.frag) names the expert of the i-th, and
// its inputs are X_PART · i blocks further on in the row of x; adapters have ranks for each expert. Otherwise a slot is a
// group of rows that chose one expert (shaders/group_experts.frag), and with TOGETHER each row of a group has the
// slot of x that the group names. An unused group becomes zero.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
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
#if TOGETHER
uniform sampler2D x;
#else
EACH_ROW(DECLARE_INPUT)
#endif
#if !defined(RAW) || SCALED || CENTRED
uniform sampler2D consts;
#endif
uniform int share;
#include "common/settled.glsl"
#ifdef GAIN
uniform sampler2D gain;
// After the last input V is zero, and the last gain is repeated.
#define FETCH_GAIN(column) vec4 factor = FETCH(gain, ivec2(min(column, GAIN_WIDTH - 1), 0), ivec2(GAIN_WIDTH, 1));
#define GAINED(V) V = settled(V * factor);
#else
#define FETCH_GAIN(column)
#define GAINED(V)
#endif
#if ALONE
#define ROW_OF(n) 0
#else
#define ROW_OF(n) (ROWS * out_slot + (n))
#endif
#if defined(ROPE) && !ALONE || defined(LORA_BY_ROW)
#include "common/row_info.glsl"
#endif
#ifdef ROPE
#include "common/rope.glsl"
#if ALONE
uniform int position;
#define ANGLES(n) position
#else
#define ANGLES(n) ANGLES_OF(ROW_OF(n))
#endif
#endif
#ifdef LORA
#include "common/low_rank.glsl"
#endif
#ifdef RESIDUAL
EACH_ROW(DECLARE_SECOND)
#endif
#ifdef NORMS
#include "common/norms.glsl"
#endif
EACH_ROW(DECLARE_TARGET)
#ifdef PARTS
flat in int part;
#else
const int part = 0;
#endif

// The slot of row n in its texture, and the first block of its inputs there.
#if defined(EXPERT_BLOCKS) && !defined(X_PART)
uniform sampler2D chosen;
#define CHOSEN_LAYOUT CHOSEN_TILES, CHOSEN_PITCH, CHOSEN_SLOT_STEP, CHOSEN_BLOCK_STEP, CHOSEN_COLUMNS
#define CHOSEN_ROW(n) \
    FETCH(chosen, (block_origin(out_slot, 0, CHOSEN_LAYOUT) + lane_offset(n)), ivec2(CHOSEN_WIDTH, CHOSEN_HEIGHT))
#define LEAVE_OUT(n, X, R, Y, V, A, B, C, D, E, F, S) Y = vec4(0.0);
int x_slots[ROWS];
#endif
#if TOGETHER && defined(EXPERT_BLOCKS) && !defined(X_PART)
#define X_SLOT(n) x_slots[n]
#elif TOGETHER || ALONE
#define X_SLOT(n) ROW_OF(n)
#else
#define X_SLOT(n) out_slot
#endif
#ifdef X_PART
#include "common/choices.glsl"
int x_first, choice_number;
#define LORA_FIRST (choice_number * LORA_STEPS)
#else
#define x_first 0
#define LORA_FIRST 0
#endif

// Texel `inner` of a block of the inputs of row n, in texture X.
#if TOGETHER
#define X_TEXEL(n, X, number) FETCH(x, IN_X(block_origin(X_SLOT(n), x_first + (number), X_LAYOUT) + inner), X_SIZE)
#else
#define X_TEXEL(n, X, number) FETCH(X, IN_X(block_origin(X_SLOT(n), x_first + (number), X_LAYOUT) + inner), X_SIZE)
#endif
#ifdef RAW_INPUT
#include "common/raw_input.glsl"
float input_norm[ROWS];

// The texels of four inputs, so that a fragment can start all fetches before it uses the first.
struct Input {
    vec4 sum, bias;
#if X_GATED
    vec4 second, second_bias;
#endif
};

vec4 finished(Input v, float norm) {
    vec4 y = activations(whole_sum(v.sum, norm, v.bias));
#if X_GATED
    y *= whole_sum(v.second, norm, v.second_bias);
#endif
    return y;
}
#define FINISHED(n, v) finished(v, input_norm[n])
#define SUM_LANE (4 * ((inner.x >> 1) + 2 * (inner.y >> 1)) + (inner.x & 1) + 2 * (inner.y & 1))
#define SUM_AND_BIAS(n, X, number) X_TEXEL(n, X, number), input_bias(number, SUM_LANE)
#if X_GATED
#define INPUT(n, X) Input(SUM_AND_BIAS(n, X, 2 * block), SUM_AND_BIAS(n, X, 2 * block + 1))
#else
#define INPUT(n, X) Input(SUM_AND_BIAS(n, X, block))
#endif
#define START_NORM(n, X, R, Y, V, A, B, C, D, E, F, S) input_norm[n] = input_norm_of(X_TEXEL(n, X, X_BLOCKS - 1));
#else
#define Input vec4
#define INPUT(n, X) X_TEXEL(n, X, block)
#define FINISHED(n, v) v
#endif

// The macros below use constants in scope: `a` numbers accumulators and pieces, `h` the halves of a gate. SwiftShader does
// not unroll loops, and reads an array with a computed index one number at a time.
#define EACH_QUARTER(DO) { const int a = 0; DO } { const int a = 1; DO } { const int a = 2; DO } { const int a = 3; DO }
// One row computes both halves of a gate at once. For more rows fetching the inputs twice is cheaper than twice the sums.
#if GATED && ROWS == 1
#define AT_ONCE 2
#define EACH_HALF(DO) { const int h = 0; DO } { const int h = 1; DO }
#else
#define AT_ONCE 1
#define EACH_HALF(DO) { const int h = 0; DO }
#endif
#if GATED && ROWS > 1
#define HALF half_block
#else
#define HALF h
#endif
#define MATRIX_BLOCK (first_block + HALF)

// The variables of each row: one or two texels, the sums, the first result of a gate, and the sums of squares and of inputs,
// in all and of the two texels.
#define SUMS(n, X, R, Y, V, A, B, C, D, E, F, S) vec4 V, E, F, A[4 * AT_ONCE], S;
#define START_SUMS(n, X, R, Y, V, A, B, C, D, E, F, S) EACH_HALF(A[4 * h] = A[4 * h + 1] = A[4 * h + 2] = A[4 * h + 3] = vec4(0.0);)
#define START_GATHERING(n, X, R, Y, V, A, B, C, D, E, F, S) S = vec4(0.0);
#define FETCH_INPUT(n, X, R, Y, V, A, B, C, D, E, F, S) V = FINISHED(n, INPUT(n, X));
#define GAIN_INPUT(n, X, R, Y, V, A, B, C, D, E, F, S) GAINED(V)
#define SQUARE(n, X, R, Y, V, A, B, C, D, E, F, S) S.x += dot(V, V);
#define ADD_UP(n, X, R, Y, V, A, B, C, D, E, F, S) S.y += settled((V.x + V.y) + (V.z + V.w));
#define FETCH_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) F = FINISHED(n, INPUT(n, X));
#define GAIN_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) GAINED(F)
#define SQUARE_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) S.x += dot(F, F);
#define ADD_UP_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) S.y += settled((F.x + F.y) + (F.z + F.w));
#if CENTRED
#define GATHER EACH_ROW(SQUARE) EACH_ROW(ADD_UP)
#define GATHER_OTHERS EACH_ROW(SQUARE_OTHER) EACH_ROW(ADD_UP_OTHER)
#else
#define GATHER EACH_ROW(SQUARE)
#define GATHER_OTHERS EACH_ROW(SQUARE_OTHER)
#endif
// Whether the loop over the matrix gathers the squares; instances each gather those of all inputs before.
#if defined(RAW) || (defined(NORM) && !defined(PARTS))
#define GATHERS 1
#define GATHER_INPUT GATHER
#define GATHER_OTHER GATHER_OTHERS
#else
#define GATHERS 0
#define GATHER_INPUT
#define GATHER_OTHER
#endif

#if GROUPED
#define LINE_WORDS LINE_TEXELS
// One row keeps the bits above the lowest four of a line.
#if ROWS == 1 && QUAD && FORM_HIGH
#define KEEPS_HIGH 1
#define HIGH_TEXEL(n) high[4 * FORM_HIGH * h + (n)]
#else
#define KEEPS_HIGH 0
#endif
#include "common/grouped.glsl"
#if HAS_LEAST
#define ADD_LEAST(A, S) A += LEAST_TIMES(s, S.z, S.w);
#define SUM_BOTH EACH_ROW(SUM_HALVES)
#else
#define ADD_LEAST(A, S)
#define SUM_BOTH
#endif
#define TIMES(n, X, R, Y, V, A, B, C, D, E, F, S) A[4 * h + a] += GROUP_TIMES(w, s, V, F); ADD_LEAST(A[4 * h + a], S)
#define SUM_HALVES(n, X, R, Y, V, A, B, C, D, E, F, S) S.z = sum_of(V); S.w = sum_of(F);
#if GATHERS
#define GATHER_GROUP if (group < GROUPS) { GATHER GATHER_OTHERS }
#else
#define GATHER_GROUP
#endif
// The inputs of word w of a group. Numbers after the last input have scale zero, and their inputs must be finite.
#define GROUP_INPUTS \
    int own = min(group, GROUPS - 1), block = own >> 1; \
    ivec2 corner = ivec2(w & 1, 2 * (own & 1) + (w >> 1)); \
    { ivec2 inner = corner; EACH_ROW(FETCH_INPUT) } \
    { ivec2 inner = corner + ivec2(2, 0); EACH_ROW(FETCH_OTHER) } \
    GATHER_GROUP \
    { FETCH_GAIN(8 * own + w) EACH_ROW(GAIN_INPUT) } \
    { FETCH_GAIN(8 * own + w + 4) EACH_ROW(GAIN_OTHER) } \
    SUM_BOTH
#define FETCH_SCALES ivec2 line = lines[h]; scales[4 * h + a] = SCALES_OF(a);
#define TIMES_GROUP \
    ivec2 line = lines[h]; \
    Scales s = scales[4 * h + a]; \
    DECLARE_HIGH(a) \
    DECLARE_WORDS(a, w) \
    EACH_ROW(TIMES)
// Without quads, group a of a line and its words in order.
#define WHOLE_GROUP \
    EACH_HALF(FETCH_SCALES) \
    for (;;) { \
        int w = turn & 3, group = turn >> 2; \
        GROUP_INPUTS \
        EACH_HALF(TIMES_GROUP) \
        turn++; \
        if ((turn & 3) == 0) break; \
    }
#else
#define LINE_WORDS (4 * PIECE)
// The words of a 4×4 piece, fetched once for all rows, and its product with a texel of one row. The words of accumulator a
// begin 8 · PIECE · a texels on.
#define WEIGHT(e) FETCH(weight, (lines[h] + ivec2(8 * (PIECE * a + (e)), 0)), WEIGHT_SIZE)
#if PIECE == 4
#define FETCH_PIECE WORDS w0 = WEIGHT(0), w1 = WEIGHT(1), w2 = WEIGHT(2), w3 = WEIGHT(3);
#define PIECE_OF(w, n) w[n], w[n + 1], w[n + 2], w[n + 3]
#define WITH_PIECE(A, V) with_piece(A, w0, w1, w2, w3, V)
#elif PIECE == 2
#define FETCH_PIECE WORDS w0 = WEIGHT(0), w1 = WEIGHT(1);
#define PIECE_OF(w, n) w[n], w[n + 1]
#define WITH_PIECE(A, V) with_piece(A, w0, w1, V)
#else
#define FETCH_PIECE WORDS w0 = WEIGHT(0);
#define PIECE_OF(w, n) w[n]
#define WITH_PIECE(A, V) with_piece(A, w0, V)
#endif
#if FUSED && ROWS > 1
// Each column is added for all rows before the next column, so that no row waits for its last sum.
#define TIMES_X(n, X, R, Y, V, A, B, C, D, E, F, S) A[4 * h + a] += column * V.x;
#define TIMES_Y(n, X, R, Y, V, A, B, C, D, E, F, S) A[4 * h + a] += column * V.y;
#define TIMES_Z(n, X, R, Y, V, A, B, C, D, E, F, S) A[4 * h + a] += column * V.z;
#define TIMES_W(n, X, R, Y, V, A, B, C, D, E, F, S) A[4 * h + a] += column * V.w;
#define ADD_PIECE \
    FETCH_PIECE \
    { vec4 column = COLUMN_X; EACH_ROW(TIMES_X) } \
    { vec4 column = COLUMN_Y; EACH_ROW(TIMES_Y) } \
    { vec4 column = COLUMN_Z; EACH_ROW(TIMES_Z) } \
    { vec4 column = COLUMN_W; EACH_ROW(TIMES_W) }
#else
#define TIMES(n, X, R, Y, V, A, B, C, D, E, F, S) A[4 * h + a] = WITH_PIECE(A[4 * h + a], V);
#define ADD_PIECE FETCH_PIECE EACH_ROW(TIMES)
#endif
// llvmpipe masks each sum that an iteration of a loop stores. An iteration of two steps adds both products to a sum before it is stored.
#if QUAD && LOOKUP_TEXTURE && ROWS > 1 && !defined(PARTS)
#define TWO_STEPS 1
#else
#define TWO_STEPS 0
#endif
#define TIMES_BOTH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    A[4 * h + a] = with_piece(with_piece(A[4 * h + a], PIECE_OF(words, 0), V), PIECE_OF(words, PIECE), F);
#define ADD_PIECES \
    WORDS words[2 * PIECE]; \
    for (int i = 0; i < 2 * PIECE; i++) { \
        ivec2 line = i < PIECE ? lines[h] : others[h]; \
        words[i] = FETCH(weight, (line + ivec2(8 * (PIECE * a + i % PIECE), 0)), WEIGHT_SIZE); \
    } \
    EACH_ROW(TIMES_BOTH)
#define OTHER_LINE others[h] = WEIGHT_LINE(++numbers[h]);
#define OTHER_INPUTS(a) \
    ivec2 inner = INNER(a) + ivec2(2, 0); \
    EACH_ROW(FETCH_OTHER) \
    GATHER_OTHER \
    { FETCH_GAIN(4 * step + 4 + (a)) EACH_ROW(GAIN_OTHER) }
#define STEP_INPUTS(a) \
    ivec2 inner = corner + ivec2((a) & 1, (a) >> 1); \
    EACH_ROW(FETCH_INPUT) \
    GATHER_INPUT \
    { FETCH_GAIN(4 * step + (a)) EACH_ROW(GAIN_INPUT) }
// Without quads, texel a of a step and its piece. In a loop that chooses the sums by conditions, SwiftShader takes four times
// as long.
#define INPUT_AND_PIECE STEP_INPUTS(a) EACH_HALF(ADD_PIECE)
#endif
#define WEIGHT_LINE(n) (line_at(n, WEIGHT_COLUMNS, 8 * LINE_WORDS) + ivec2(out_lane & 7, 0))
#define START_LINE \
    numbers[h] = (2 * MATRIX_BLOCK + (out_lane >> 3)) * STEPS + first; \
    lines[h] = WEIGHT_LINE(numbers[h]);
#define NEXT_LINE lines[h] = WEIGHT_LINE(++numbers[h]);
#ifndef UNROLL
#define UNROLL 1
#endif
// Texels of x that a fragment reads at each step.
#if QUAD
#define TAKEN 1
#define INNER(t) (corner + ivec2(out_lane & 1, (out_lane >> 1) & 1))
#else
#define TAKEN 4
#define INNER(t) (corner + ivec2((t) & 1, (t) >> 1))
#endif

// The constants of a half's block of outputs; the bias is after the scales and the sums.
#define BIAS_AT (4 * SCALED + CENTRED)
#define CONSTANT(i) FETCH(consts, (here + ivec2(16 * (i), 0)), ivec2(CONSTS_WIDTH, CONSTS_HEIGHT))
#if !defined(RAW) || SCALED || CENTRED
#define FIND_CONSTANTS ivec2 here = line_at(MATRIX_BLOCK, CONSTS_COLUMNS, 16 * (BIAS_AT + 1)) + ivec2(out_lane, 0);
#else
#define FIND_CONSTANTS
#endif
#ifdef RAW
#define FETCH_BIAS
#else
#define FETCH_BIAS bias[h] = CONSTANT(BIAS_AT);
#endif
#if CENTRED
#define FETCH_WEIGHT_SUMS weight_sums[h] = CONSTANT(BIAS_AT - 1);
#else
#define FETCH_WEIGHT_SUMS
#endif
#if SCALED
#define FETCH_FACTORS EACH_QUARTER(factors[4 * h + a] = CONSTANT(a) * (1.0 / UNIT);)
#define SCALE(A) EACH_QUARTER(A[4 * h + a] *= factors[4 * h + a];)
#else
#define FETCH_FACTORS
#define SCALE(A)
#endif
#define FETCH_CONSTANTS FIND_CONSTANTS FETCH_BIAS FETCH_WEIGHT_SUMS FETCH_FACTORS

// The finish of a row's four sums.
#if QUAD
#define TOTAL(A) quad_share(vec4[4](A[4 * h], A[4 * h + 1], A[4 * h + 2], A[4 * h + 3]), out_lane)
#define GATHERED(S) quad_sum(vec4(S.xy, 0.0, 0.0), out_lane)
#else
#define TOTAL(A) (A[4 * h] + A[4 * h + 1]) + (A[4 * h + 2] + A[4 * h + 3])
#define GATHERED(S) S
#endif
#ifdef LORA
#define ADD_LORA(n) \
    if (part == 0) total += low_rank(MATRIX_BLOCK, out_lane, ROW_OF(n), ADAPTER_OF(ROW_OF(n)), LORA_FIRST);
#else
#define ADD_LORA(n)
#endif
#if defined(LORA) && LORA_BIASED
#define ADD_LORA_BIAS(n) if (part == 0) total += low_rank_bias(MATRIX_BLOCK, out_lane, ADAPTER_OF(ROW_OF(n)));
#else
#define ADD_LORA_BIAS(n)
#endif
#if defined(NORM) && CENTRED
#define NORMALISE(n, S) \
    gathered = GATHERED(S) / float(DIM); \
    if (part == 0) total -= gathered.y * weight_sums[h]; \
    total *= inversesqrt(max(gathered.x - gathered.y * gathered.y, 0.0) + float(EPS));
#elif defined(NORM)
#define NORMALISE(n, S) gathered = GATHERED(S) / float(DIM); total *= inversesqrt(gathered.x + float(EPS));
#elif defined(NORMS) && CENTRED
#define NORMALISE(n, S) total -= means[n / 4][n % 4] * weight_sums[h]; total *= norm[n / 4][n % 4];
#elif defined(NORMS)
#define NORMALISE(n, S) total *= norm[n / 4][n % 4];
#else
#define NORMALISE(n, S)
#endif
#ifdef OUTPUT_CAP
#define BOUNDED(Y) Y = soft_capped(Y, float(OUTPUT_CAP));
#else
#define BOUNDED(Y)
#endif
#ifdef ROPE
#define ROTATE(n, Y) Y = rotated(Y, 16 * out_block + out_lane, ANGLES(n));
#else
#define ROTATE(n, Y)
#endif
#if GATED && defined(GATE_LIMIT)
#define ACTIVATE(Y, E) if (HALF == 0) E = total; else Y = gated(E, total);
#elif GATED
// Both halves are activated: branches around the activations of eight rows cost an NVIDIA H100 7% of a prompt.
#define ACTIVATE(Y, E) Y = activations(total); if (HALF == 0) E = Y; else Y = E * total;
#elif defined(RAW_INPUT)
#define ACTIVATE(Y, E) Y = total;
#else
#define ACTIVATE(Y, E) Y = activations(total);
#endif
#if defined(RAW) && CENTRED
#define LESS_MEAN total -= gathered.y / float(DIM) * weight_sums[h];  // for the inputs of this instance's share
#else
#define LESS_MEAN
#endif
#ifdef RAW
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    SCALE(A) \
    total = TOTAL(A); \
    ADD_LORA(n) \
    gathered = GATHERED(S); \
    LESS_MEAN \
    Y = gathers ? vec4(gathered.xy, 0.0, 0.0) : total;
#define STORE(n, X, R, Y, V, A, B, C, D, E, F, S)
#else
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    SCALE(A) \
    total = TOTAL(A); \
    ADD_LORA(n) \
    NORMALISE(n, S) \
    if (part == 0) total += bias[h]; \
    ADD_LORA_BIAS(n) \
    ACTIVATE(Y, E)
#define STORE(n, X, R, Y, V, A, B, C, D, E, F, S) BOUNDED(Y) ROTATE(n, Y) Y = stored(Y AND_RESIDUAL(R));
#endif

void main() {
    locate();
    int member = out_lane & 3;
#ifdef RAW
    bool gathers = out_block >= OUT_BLOCKS - 1;
    out_block = min(out_block, OUT_BLOCKS - 2);
#endif
    int first_block = out_block;
#ifdef X_PART
    choice_number = out_block / EXPERT_BLOCKS;
    first_block = expert_at(out_slot, choice_number) * EXPERT_BLOCKS + out_block % EXPERT_BLOCKS;
    x_first = choice_number * X_PART;
#elif defined(EXPERT_BLOCKS)
    vec4 leader = CHOSEN_ROW(0);
    if (leader.z == 0.0) {
        EACH_ROW(LEAVE_OUT)
        return;
    }
    first_block += int(leader.y + 0.5) * EXPERT_BLOCKS;
    for (int n = 0; n < ROWS; n++) x_slots[n] = int(CHOSEN_ROW(n).x + 0.5);
#endif
    first_block *= 1 + GATED;
    EACH_ROW(SUMS)
    EACH_ROW(START_GATHERING)
    vec4 total, gathered;
#ifndef RAW
    vec4 bias[AT_ONCE];
#endif
#if CENTRED
    vec4 weight_sums[AT_ONCE];
#endif
#if SCALED
    vec4 factors[4 * AT_ONCE];
#endif
    ivec2 lines[AT_ONCE];
    int numbers[AT_ONCE], first = part * share;
#ifdef RAW_INPUT
    { ivec2 inner = ivec2(0); EACH_ROW(START_NORM) }
#endif
#if defined(NORM) && !GATHERS && ROWS == 1
    // The texels of a block are fetched together.
    for (int block = 0; block < X_BLOCKS; block++) {
        vec4 v[4 * TAKEN];
        for (int i = 0; i < 4 * TAKEN; i++) {
            int step = i / TAKEN;
            ivec2 corner = 2 * ivec2(step & 1, step >> 1), inner = INNER(i % TAKEN);
            v[i] = INPUT(0, x0);
        }
        for (int i = 0; i < 4 * TAKEN; i++) {
            v0 = v[i];
            GATHER
        }
    }
#elif defined(NORM) && !GATHERS
    for (int step = 0; step < 4 * X_BLOCKS; step++) {
        int block = step >> 2;
        ivec2 corner = 2 * ivec2(step & 1, (step >> 1) & 1);
        for (int t = 0; t < TAKEN; t++) {
            ivec2 inner = INNER(t);
            EACH_ROW(FETCH_INPUT)
            GATHER
        }
    }
#endif
#if ROWS == 1
    EACH_HALF(FETCH_CONSTANTS)  // fetched first, used last
#endif
#if GATED && ROWS > 1
    // The gate's block comes first, then the block that it multiplies.
    for (int half_block = 0; half_block < 2; half_block++) {
        EACH_ROW(START_GATHERING)
#endif
    EACH_ROW(START_SUMS)
    EACH_HALF(START_LINE)
    // The test comes last: with a test at the top, llvmpipe would run the body once more in vain.
#if GROUPED
    // The outer loop fetches scales, since llvmpipe always runs both sides of a condition.
    // The inner loop runs words 0 to 3 of a group; its count is hidden from compilers, which would unroll it.
    Scales scales[4 * AT_ONCE];
#if KEEPS_HIGH
    uvec4 high[4 * FORM_HIGH * AT_ONCE];
#endif
#if QUAD
    int turn = 4 * first, turns = 4 * (first + share);
#else
    int turn = 16 * first, turns = 16 * (first + share);
#endif
    for (;;) {
#if QUAD
        EACH_HALF(EACH_QUARTER(FETCH_SCALES))
#if KEEPS_HIGH
        for (int h = 0; h < AT_ONCE; h++) {
            ivec2 line = lines[h];
            for (int n = 0; n < 4 * FORM_HIGH; n++) HIGH_TEXEL(n) = LINE_TEXEL(HIGH_AT + n);
        }
#endif
        for (;;) {
            int w = turn & 3, group = turn - w + member;
            GROUP_INPUTS
            EACH_HALF(EACH_QUARTER(TIMES_GROUP))
            turn++;
            if ((turn & 3) == 0) break;
        }
#else
        EACH_QUARTER(WHOLE_GROUP)
#endif
        EACH_HALF(NEXT_LINE)
        if (turn >= turns) break;
    }
#elif UNROLL > 1
    for (int start = first; start < first + share; start += UNROLL) {
        // All fetches come before the first use, to wait for memory once.
        Input v[UNROLL * TAKEN];
        WORDS w[UNROLL * 4 * PIECE * AT_ONCE];
        for (int i = 0; i < UNROLL; i++) {
            int step = start + i, block = step >> 2;
            ivec2 corner = 2 * ivec2(step & 1, (step >> 1) & 1);
            for (int t = 0; t < TAKEN; t++) {
                ivec2 inner = INNER(t);
                v[TAKEN * i + t] = INPUT(0, x0);
            }
            for (int n = 0; n < 4 * PIECE * AT_ONCE; n++) {
                ivec2 line = lines[n / (4 * PIECE)] + ivec2(8 * (n % (4 * PIECE)), 0);
                w[4 * PIECE * AT_ONCE * i + n] = FETCH(weight, line, WEIGHT_SIZE);
            }
            EACH_HALF(NEXT_LINE)
        }
        for (int i = 0; i < UNROLL; i++) {
            vec4 u[TAKEN];
            for (int t = 0; t < TAKEN; t++) {
                v0 = FINISHED(0, v[TAKEN * i + t]);
                GATHER_INPUT
                FETCH_GAIN(4 * (start + i) + (TAKEN == 1 ? member : t))
                GAINED(v0)
                u[t] = v0;
            }
            for (int a = 0; a < 4 * AT_ONCE; a++) {
                int n = 4 * PIECE * AT_ONCE * i + PIECE * a;
                a0[a] = with_piece(a0[a], PIECE_OF(w, n), u[TAKEN == 1 ? 0 : a & 3]);
            }
        }
    }
#else
    // Each texel is used as soon as it is fetched, since llvmpipe would spill waiting texels to memory.
    int step = first;
    for (;;) {
        int block = step >> 2;
        ivec2 corner = 2 * ivec2(step & 1, (step >> 1) & 1);
#if TWO_STEPS
        { STEP_INPUTS(member) }
        { OTHER_INPUTS(member) }
        ivec2 others[AT_ONCE];
        EACH_HALF(OTHER_LINE)
        EACH_QUARTER(EACH_HALF(ADD_PIECES))
        step++;
#elif QUAD
        STEP_INPUTS(member)
        EACH_QUARTER(EACH_HALF(ADD_PIECE))
#else
        EACH_QUARTER(INPUT_AND_PIECE)
#endif
        EACH_HALF(NEXT_LINE)
        step++;
        if (step >= first + share) break;
    }
#endif
#if ROWS > 1
    EACH_HALF(FETCH_CONSTANTS)
#endif
#ifdef NORMS
    vec4 norm[(ROWS + 3) / 4];
    for (int i = 0; i < (ROWS + 3) / 4; i++) norm[i] = NORM_TEXEL(i);
#if CENTRED
    vec4 means[(ROWS + 3) / 4];
    for (int i = 0; i < (ROWS + 3) / 4; i++) means[i] = NORM_TEXEL(2 + i);
#endif
#endif
    EACH_HALF(EACH_ROW(FINISH))
#if GATED && ROWS > 1
    }
#endif
    EACH_ROW(STORE)
}

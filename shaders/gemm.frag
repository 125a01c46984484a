#version 300 es
// ROWS products at once: y[r, o] = activation(norm · sum over i of weight[o, i] · gain[i] · x[r, i] + bias[o]) +
// residual[r, o]; a fragment computes four outputs o of the ROWS rows r of one slot. Everything else, and the order of every
// sum, is as in shaders/gemv.frag, so a row gives the same numbers in both.
// With NORM the loop computes the norm too, with NORMS it is read from the output of shaders/row_norms.frag.
// PARTS, RAW and RAW_INPUT are as in shaders/gemv.frag: shared products, raw sums for the reader, and raw inputs.
// With LORA each row's adapter adds to the sums, see common/low_rank.glsl.
// Row ROWS · slot + n is in slot `slot` of texture n (x, residual and y), or with TOGETHER in slot ROWS · slot + n of
// the one texture x. With EXPERT_BLOCKS a slot is a group of rows that chose one expert (shaders/group_experts.frag): the
// matrix stacks those of all experts, EXPERT_BLOCKS blocks of outputs each, and with TOGETHER each row of a group has the
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
#define BOUNDED(Y) Y = soft_capped(Y, float(OUTPUT_CAP));
#else
#define BOUNDED(Y)
#endif
#include "common/half.glsl"
#include "common/lines.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
#define X_SIZE ivec2(X_WIDTH, X_HEIGHT)
#define CONSTANT(i) FETCH(consts, (here + ivec2(16 * (i), 0)), ivec2(CONSTS_WIDTH, CONSTS_HEIGHT))
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
#ifdef ROPE
#include "common/rope.glsl"
#endif
#if defined(ROPE) || defined(LORA_BY_ROW)
#include "common/row_info.glsl"
#endif
#ifdef LORA
#include "common/low_rank.glsl"
#define LORA_ROW(n) ROWS * out_slot + n
#define ADD_LORA(n) if (part == 0) total += low_rank(matrix_block, out_lane, LORA_ROW(n), ADAPTER_OF(LORA_ROW(n)), 0);
#else
#define ADD_LORA(n)
#endif
#if defined(LORA) && LORA_BIASED
#define ADD_LORA_BIAS(n) if (part == 0) total += low_rank_bias(matrix_block, out_lane, ADAPTER_OF(LORA_ROW(n)));
#else
#define ADD_LORA_BIAS(n)
#endif
#ifdef RESIDUAL
EACH_ROW(DECLARE_SECOND)
#endif
#ifdef NORMS
uniform sampler2D norms;
#define NORMS_PLACES NORMS_TILES, NORMS_PITCH, NORMS_SLOT_STEP, NORMS_BLOCK_STEP, NORMS_COLUMNS
#define NORM_TEXEL(quad) FETCH(norms, (block_origin(out_slot, 0, NORMS_PLACES) + lane_offset(4 * (quad) + (out_lane & 3))), \
                               ivec2(NORMS_WIDTH, NORMS_HEIGHT))
#endif
EACH_ROW(DECLARE_TARGET)
#ifdef EXPERT_BLOCKS
uniform sampler2D chosen;
#define CHOSEN_PLACES CHOSEN_TILES, CHOSEN_PITCH, CHOSEN_SLOT_STEP, CHOSEN_BLOCK_STEP, CHOSEN_COLUMNS
#define CHOSEN_ROW(n) \
    FETCH(chosen, (block_origin(out_slot, 0, CHOSEN_PLACES) + lane_offset(n)), ivec2(CHOSEN_WIDTH, CHOSEN_HEIGHT))
#define LEAVE_OUT(n, X, R, Y, V, A, B, C, D, E, F, S) Y = vec4(0.0);
#define X_SLOT(n) x_slots[n]
#else
#define X_SLOT(n) (ROWS * out_slot + (n))
#endif
#ifdef PARTS
flat in int part;
#else
const int part = 0;
#endif

#define WEIGHT_LINE(n) (line_at(n, WEIGHT_COLUMNS, 8 * LINE_WORDS) + ivec2(out_lane & 7, 0))
// The texel of the bias among a block's constants.
#define BIAS_AT (4 * SCALED + CENTRED)

#if defined(RAW) || (defined(NORM) && !defined(PARTS))
#define GATHERS 1
#else
#define GATHERS 0
#endif

// One texel of every row, four inputs; `from` is its texel in a slot's texture, `inner` its lane in block `block`.
#if TOGETHER
#define FETCH_INPUT(n, X, R, Y, V, A, B, C, D, E, F, S) \
    V = FETCH(x, (block_origin(X_SLOT(n), block, X_PLACES) + inner), X_SIZE);
#define FETCH_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) \
    F = FETCH(x, (block_origin(X_SLOT(n), block, X_PLACES) + inner), X_SIZE);
#else
#define FETCH_INPUT(n, X, R, Y, V, A, B, C, D, E, F, S) V = FINISHED(n, X);
#define FETCH_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) F = FINISHED(n, X);
#endif
#ifdef RAW_INPUT
#include "common/raw_input.glsl"
float input_norm[ROWS];
#define START_NORM(n, X, R, Y, V, A, B, C, D, E, F, S) \
    input_norm[n] = input_norm_of(FETCH(X, block_origin(out_slot, X_BLOCKS - 1, X_PLACES), X_SIZE));
#define SUM_PLACE(number) (block_origin(out_slot, number, X_PLACES) + inner)
#define SUM_LANE (4 * ((inner.x >> 1) + 2 * (inner.y >> 1)) + (inner.x & 1) + 2 * (inner.y & 1))
#if X_GATED
#define PLACE_INPUT ivec2 from = SUM_PLACE(2 * block), second = SUM_PLACE(2 * block + 1); \
    vec4 bias = input_bias(2 * block, SUM_LANE), second_bias = input_bias(2 * block + 1, SUM_LANE);
#define FINISHED(n, X) activations(whole_sum(FETCH(X, from, X_SIZE), input_norm[n], bias)) * \
    whole_sum(FETCH(X, second, X_SIZE), input_norm[n], second_bias)
#else
#define PLACE_INPUT ivec2 from = SUM_PLACE(block); vec4 bias = input_bias(block, SUM_LANE);
#define FINISHED(n, X) activations(whole_sum(FETCH(X, from, X_SIZE), input_norm[n], bias))
#endif
#else
#define PLACE_INPUT ivec2 from = block_origin(out_slot, block, X_PLACES) + inner;
#define FINISHED(n, X) FETCH(X, from, X_SIZE)
#endif
#define GAIN_INPUT(n, X, R, Y, V, A, B, C, D, E, F, S) GAINED(V)
#define GAIN_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) GAINED(F)

// The variables of each row: one or two texels; four sums; the gate's results; the sums of squares and of inputs, in all
// and of the two texels.
#define DECLARE_SUMS(n, X, R, Y, V, A, B, C, D, E, F, S) \
    vec4 V, A = vec4(0.0), B = vec4(0.0), C = vec4(0.0), D = vec4(0.0), E, F, S = vec4(0.0);
#define START_SUMS(n, X, R, Y, V, A, B, C, D, E, F, S) \
    A = vec4(0.0); B = vec4(0.0); C = vec4(0.0); D = vec4(0.0); S = vec4(0.0);
#define SQUARE(n, X, R, Y, V, A, B, C, D, E, F, S) S.x += dot(V, V);
#define ADD_UP(n, X, R, Y, V, A, B, C, D, E, F, S) S.y += settled((V.x + V.y) + (V.z + V.w));
#if CENTRED
#define GATHER EACH_ROW(SQUARE) EACH_ROW(ADD_UP)
#else
#define GATHER EACH_ROW(SQUARE)
#endif
#if GATHERS
#define GATHER_INPUT GATHER
#else
#define GATHER_INPUT
#endif

#if GROUPED
#define LINE_WORDS LINE_TEXELS
#include "common/grouped.glsl"
#if HAS_LEAST
#define ADD_LEAST(A, S) A += LEAST_TIMES(s, S.z, S.w);
#else
#define ADD_LEAST(A, S)
#endif
#define TIMES_A(n, X, R, Y, V, A, B, C, D, E, F, S) A += GROUP_TIMES(w, s, V, F); ADD_LEAST(A, S)
#define TIMES_B(n, X, R, Y, V, A, B, C, D, E, F, S) B += GROUP_TIMES(w, s, V, F); ADD_LEAST(B, S)
#define TIMES_C(n, X, R, Y, V, A, B, C, D, E, F, S) C += GROUP_TIMES(w, s, V, F); ADD_LEAST(C, S)
#define TIMES_D(n, X, R, Y, V, A, B, C, D, E, F, S) D += GROUP_TIMES(w, s, V, F); ADD_LEAST(D, S)
#define SUM_HALVES(n, X, R, Y, V, A, B, C, D, E, F, S) S.z = sum_of(V); S.w = sum_of(F);
#define SQUARE_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) S.x += dot(F, F);
#define ADD_UP_OTHER(n, X, R, Y, V, A, B, C, D, E, F, S) S.y += settled((F.x + F.y) + (F.z + F.w));
#if GATHERS && CENTRED
#define GATHER_GROUP(group) \
    if (group < GROUPS) { EACH_ROW(SQUARE) EACH_ROW(SQUARE_OTHER) EACH_ROW(ADD_UP) EACH_ROW(ADD_UP_OTHER) }
#elif GATHERS
#define GATHER_GROUP(group) if (group < GROUPS) { EACH_ROW(SQUARE) EACH_ROW(SQUARE_OTHER) }
#else
#define GATHER_GROUP(group)
#endif
#if HAS_LEAST
#define SUM_BOTH EACH_ROW(SUM_HALVES)
#else
#define SUM_BOTH
#endif
// The inputs of word w of a group. Numbers after the last input have scale zero, and their inputs must be
// finite.
#define GROUP_INPUTS(GROUP) \
    int group = GROUP; \
    int own = min(group, GROUPS - 1), block = own >> 1; \
    ivec2 corner = ivec2(w & 1, 2 * (own & 1) + (w >> 1)); \
    { \
        ivec2 inner = corner; \
        PLACE_INPUT \
        EACH_ROW(FETCH_INPUT) \
    } \
    { \
        ivec2 inner = corner + ivec2(2, 0); \
        PLACE_INPUT \
        EACH_ROW(FETCH_OTHER) \
    } \
    GATHER_GROUP(group) \
    { FETCH_GAIN(8 * own + w) EACH_ROW(GAIN_INPUT) } \
    { FETCH_GAIN(8 * own + w + 4) EACH_ROW(GAIN_OTHER) } \
    SUM_BOTH
// Without quads, group a of a line and its words in order; see INPUT_AND_PIECE.
#define WHOLE_GROUP(a, TIMES) \
    { \
        Scales s = SCALES_OF(a); \
        do { \
            int w = turn & 3; \
            GROUP_INPUTS(turn >> 2) \
            DECLARE_HIGH(a) \
            DECLARE_WORDS(a, w) \
            EACH_ROW(TIMES) \
            turn++; \
        } while ((turn & 3) != 0); \
    }
#else
#define LINE_WORDS (4 * PIECE)
// The words of a 4×4 piece, fetched once for all rows, and its product with a texel of one row.
#define WEIGHT(a, e) FETCH(weight, (line + ivec2(8 * (PIECE * (a) + (e)), 0)), WEIGHT_SIZE)
#if PIECE == 4
#define FETCH_PIECE(a) WORDS w0 = WEIGHT(a, 0), w1 = WEIGHT(a, 1), w2 = WEIGHT(a, 2), w3 = WEIGHT(a, 3);
#define WITH_PIECE(A, V) with_piece(A, w0, w1, w2, w3, V)
#elif PIECE == 2
#define FETCH_PIECE(a) WORDS w0 = WEIGHT(a, 0), w1 = WEIGHT(a, 1);
#define WITH_PIECE(A, V) with_piece(A, w0, w1, V)
#else
#define FETCH_PIECE(a) WORDS w0 = WEIGHT(a, 0);
#define WITH_PIECE(A, V) with_piece(A, w0, V)
#endif
// Adds the piece to accumulator A, B, C or D of every row.
#if FUSED
// Each column is added for all rows before the next column, so that no row waits for its last sum.
#define COLUMNS(TIMES_X, TIMES_Y, TIMES_Z, TIMES_W) \
    { vec4 column = COLUMN_X; EACH_ROW(TIMES_X) } \
    { vec4 column = COLUMN_Y; EACH_ROW(TIMES_Y) } \
    { vec4 column = COLUMN_Z; EACH_ROW(TIMES_Z) } \
    { vec4 column = COLUMN_W; EACH_ROW(TIMES_W) }
#define A_X(n, X, R, Y, V, A, B, C, D, E, F, S) A += column * V.x;
#define A_Y(n, X, R, Y, V, A, B, C, D, E, F, S) A += column * V.y;
#define A_Z(n, X, R, Y, V, A, B, C, D, E, F, S) A += column * V.z;
#define A_W(n, X, R, Y, V, A, B, C, D, E, F, S) A += column * V.w;
#define ADD_PIECE_A COLUMNS(A_X, A_Y, A_Z, A_W)
#define B_X(n, X, R, Y, V, A, B, C, D, E, F, S) B += column * V.x;
#define B_Y(n, X, R, Y, V, A, B, C, D, E, F, S) B += column * V.y;
#define B_Z(n, X, R, Y, V, A, B, C, D, E, F, S) B += column * V.z;
#define B_W(n, X, R, Y, V, A, B, C, D, E, F, S) B += column * V.w;
#define ADD_PIECE_B COLUMNS(B_X, B_Y, B_Z, B_W)
#define C_X(n, X, R, Y, V, A, B, C, D, E, F, S) C += column * V.x;
#define C_Y(n, X, R, Y, V, A, B, C, D, E, F, S) C += column * V.y;
#define C_Z(n, X, R, Y, V, A, B, C, D, E, F, S) C += column * V.z;
#define C_W(n, X, R, Y, V, A, B, C, D, E, F, S) C += column * V.w;
#define ADD_PIECE_C COLUMNS(C_X, C_Y, C_Z, C_W)
#define D_X(n, X, R, Y, V, A, B, C, D, E, F, S) D += column * V.x;
#define D_Y(n, X, R, Y, V, A, B, C, D, E, F, S) D += column * V.y;
#define D_Z(n, X, R, Y, V, A, B, C, D, E, F, S) D += column * V.z;
#define D_W(n, X, R, Y, V, A, B, C, D, E, F, S) D += column * V.w;
#define ADD_PIECE_D COLUMNS(D_X, D_Y, D_Z, D_W)
#else
#define ADD_A(n, X, R, Y, V, A, B, C, D, E, F, S) A = WITH_PIECE(A, V);
#define ADD_PIECE_A EACH_ROW(ADD_A)
#define ADD_B(n, X, R, Y, V, A, B, C, D, E, F, S) B = WITH_PIECE(B, V);
#define ADD_PIECE_B EACH_ROW(ADD_B)
#define ADD_C(n, X, R, Y, V, A, B, C, D, E, F, S) C = WITH_PIECE(C, V);
#define ADD_PIECE_C EACH_ROW(ADD_C)
#define ADD_D(n, X, R, Y, V, A, B, C, D, E, F, S) D = WITH_PIECE(D, V);
#define ADD_PIECE_D EACH_ROW(ADD_D)
#endif
// Without quads, texel a of a step and its piece. Written out for each a: in a loop that chooses the sums by conditions,
// SwiftShader takes four times as long.
#define INPUT_AND_PIECE(a, ADD_PIECE) \
    { \
        ivec2 inner = corner + ivec2((a) & 1, (a) >> 1); \
        PLACE_INPUT \
        EACH_ROW(FETCH_INPUT) \
        GATHER_INPUT \
        { FETCH_GAIN(4 * step + (a)) EACH_ROW(GAIN_INPUT) } \
        FETCH_PIECE(a) \
        ADD_PIECE \
    }
#endif

// The finish of a row's four sums.
#if SCALED
#define SCALE(A, B, C, D) A *= scale[0]; B *= scale[1]; C *= scale[2]; D *= scale[3];
#else
#define SCALE(A, B, C, D)
#endif
#if QUAD
#define TOTAL(A, B, C, D) quad_share(vec4[4](A, B, C, D), out_lane)
#define GATHERED(S) quad_sum(vec4(S.xy, 0.0, 0.0), out_lane) / float(DIM)
#else
#define TOTAL(A, B, C, D) (A + B) + (C + D)
#define GATHERED(S) S / float(DIM)
#endif
#if defined(NORM) && CENTRED
#define NORMALISE(n, S) gathered = GATHERED(S); \
    if (part == 0) total -= gathered.y * sums; \
    total *= inversesqrt(max(gathered.x - gathered.y * gathered.y, 0.0) + float(EPS));
#elif defined(NORM)
#define NORMALISE(n, S) gathered = GATHERED(S); total *= inversesqrt(gathered.x + float(EPS));
#elif defined(NORMS) && CENTRED
#define NORMALISE(n, S) total -= means[n / 4][n % 4] * sums; total *= norm[n / 4][n % 4];
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
#ifdef ROPE
#define TURN(n, Y) Y = turned(Y, 16 * out_block + out_lane, ANGLES_OF(ROWS * out_slot + n));
#else
#define TURN(n, Y)
#endif
#if GATED && defined(GATE_LIMIT)
#define OPEN_GATE(Y, E) if (half_block == 0) E = Y; else Y = gated(E, total);
#elif GATED
#define OPEN_GATE(Y, E) if (half_block == 0) E = Y; else Y = E * total;
#else
#define OPEN_GATE(Y, E)
#endif
#ifdef RAW
#if QUAD
#define GATHERED_OF_SHARE(S) quad_sum(vec4(S.xy, 0.0, 0.0), out_lane)
#else
#define GATHERED_OF_SHARE(S) S
#endif
#if CENTRED
#define LESS_MEAN total -= gathered.y / float(DIM) * sums;
#else
#define LESS_MEAN
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    SCALE(A, B, C, D) \
    total = TOTAL(A, B, C, D); \
    ADD_LORA(n) \
    gathered = GATHERED_OF_SHARE(S); \
    LESS_MEAN \
    Y = gathers ? vec4(gathered.xy, 0.0, 0.0) : total;
#else
#if defined(RAW_INPUT) || defined(GATE_LIMIT)
#define ACTIVATED(total) total
#else
#define ACTIVATED(total) activations(total)
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    SCALE(A, B, C, D) \
    total = TOTAL(A, B, C, D); \
    ADD_LORA(n) \
    NORMALISE(n, S) \
    if (part == 0) total += bias; \
    ADD_LORA_BIAS(n) \
    Y = ACTIVATED(total); \
    OPEN_GATE(Y, E) \
    BOUNDED(Y) \
    TURN(n, Y) \
    ADD_RESIDUAL(R, Y) \
    Y = stored(Y);
#endif

void main() {
    locate();
    int member = out_lane & 3;
#ifdef EXPERT_BLOCKS
    vec4 leader = CHOSEN_ROW(0);
    if (leader.z == 0.0) {
        EACH_ROW(LEAVE_OUT)
        return;
    }
    int expert_block = int(leader.y + 0.5) * EXPERT_BLOCKS;
#if TOGETHER
    int x_slots[ROWS];
    for (int n = 0; n < ROWS; n++) x_slots[n] = int(CHOSEN_ROW(n).x + 0.5);
#endif
#else
    const int expert_block = 0;
#endif
    EACH_ROW(DECLARE_SUMS)
    int first = part * share;
#ifdef RAW
    bool gathers = out_block >= OUT_BLOCKS - 1;
    out_block = min(out_block, OUT_BLOCKS - 2);
#endif
#ifdef RAW_INPUT
    EACH_ROW(START_NORM)
#endif
#if defined(NORM) && !GATHERS
    // Every instance needs the norms of all inputs.
    for (int step = 0; step < 4 * X_BLOCKS; step++) {
        int block = step >> 2;
        ivec2 corner = 2 * ivec2(step & 1, (step >> 1) & 1);
#if QUAD
        ivec2 inner = corner + ivec2(out_lane & 1, (out_lane >> 1) & 1);
        PLACE_INPUT
        EACH_ROW(FETCH_INPUT)
        GATHER
#else
        for (int a = 0; a < 4; a++) {
            ivec2 inner = corner + ivec2(a & 1, a >> 1);
            PLACE_INPUT
            EACH_ROW(FETCH_INPUT)
            GATHER
        }
#endif
    }
#endif
#if GATED
    // The gate's block comes first, then the block that it multiplies. Fetching the inputs twice is cheaper than twice the
    // sums.
    for (int half_block = 0; half_block < 2; half_block++) {
        int matrix_block = 2 * (expert_block + out_block) + half_block;
        EACH_ROW(START_SUMS)
#else
        int matrix_block = expert_block + out_block;
#endif
    // The line of this fragment's half block and step; the words of accumulator a begin 8 · PIECE · a texels on.
    int number = (2 * matrix_block + (out_lane >> 3)) * STEPS + first;
    ivec2 line = WEIGHT_LINE(number);
    // The test comes last: with a test at the top, llvmpipe would run the body once more in vain.
#if GROUPED
    // The outer loop fetches scales, since llvmpipe always runs both sides of a condition.
    // The inner loop runs words 0 to 3 of a group; its count is hidden from compilers, which would unroll it.
#if QUAD
    int turn = 4 * first, turns = 4 * (first + share);
#else
    int turn = 16 * first, turns = 16 * (first + share);
#endif
    do {
#if QUAD
        Scales of_a = SCALES_OF(0), of_b = SCALES_OF(1), of_c = SCALES_OF(2), of_d = SCALES_OF(3);
        do {
            int w = turn & 3;
            GROUP_INPUTS(turn - w + member)
            { Scales s = of_a; DECLARE_HIGH(0) DECLARE_WORDS(0, w) EACH_ROW(TIMES_A) }
            { Scales s = of_b; DECLARE_HIGH(1) DECLARE_WORDS(1, w) EACH_ROW(TIMES_B) }
            { Scales s = of_c; DECLARE_HIGH(2) DECLARE_WORDS(2, w) EACH_ROW(TIMES_C) }
            { Scales s = of_d; DECLARE_HIGH(3) DECLARE_WORDS(3, w) EACH_ROW(TIMES_D) }
            turn++;
        } while ((turn & 3) != 0);
#else
        WHOLE_GROUP(0, TIMES_A)
        WHOLE_GROUP(1, TIMES_B)
        WHOLE_GROUP(2, TIMES_C)
        WHOLE_GROUP(3, TIMES_D)
#endif
        line = WEIGHT_LINE(++number);
    } while (turn < turns);
#else
    int step = first;
    do {
        int block = step >> 2;
        ivec2 corner = 2 * ivec2(step & 1, (step >> 1) & 1);
#if QUAD
        ivec2 inner = corner + ivec2(out_lane & 1, (out_lane >> 1) & 1);
        PLACE_INPUT
        EACH_ROW(FETCH_INPUT)
        GATHER_INPUT
        { FETCH_GAIN(4 * step + member) EACH_ROW(GAIN_INPUT) }
        { FETCH_PIECE(0) ADD_PIECE_A }
        { FETCH_PIECE(1) ADD_PIECE_B }
        { FETCH_PIECE(2) ADD_PIECE_C }
        { FETCH_PIECE(3) ADD_PIECE_D }
#else
        INPUT_AND_PIECE(0, ADD_PIECE_A)
        INPUT_AND_PIECE(1, ADD_PIECE_B)
        INPUT_AND_PIECE(2, ADD_PIECE_C)
        INPUT_AND_PIECE(3, ADD_PIECE_D)
#endif
        line = WEIGHT_LINE(++number);
        step++;
    } while (step < first + share);
#endif
#if !defined(RAW) || SCALED || CENTRED
    ivec2 here = line_at(matrix_block, CONSTS_COLUMNS, 16 * (BIAS_AT + 1)) + ivec2(out_lane, 0);
#endif
    vec4 total, gathered;
#ifndef RAW
    vec4 bias = CONSTANT(BIAS_AT);
#endif
#if CENTRED
    vec4 sums = CONSTANT(BIAS_AT - 1);
#endif
#if SCALED
    vec4 scale[4] = vec4[4](CONSTANT(0), CONSTANT(1), CONSTANT(2), CONSTANT(3));
    for (int a = 0; a < 4; a++) scale[a] *= 1.0 / UNIT;
#endif
#ifdef NORMS
    vec4 norm[(ROWS + 3) / 4];
    for (int i = 0; i < (ROWS + 3) / 4; i++) norm[i] = NORM_TEXEL(i);
#if CENTRED
    vec4 means[(ROWS + 3) / 4];
    for (int i = 0; i < (ROWS + 3) / 4; i++) means[i] = NORM_TEXEL(2 + i);
#endif
#endif
    EACH_ROW(FINISH)
#if GATED
    }
#endif
}

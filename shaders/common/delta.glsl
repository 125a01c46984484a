// Layouts and sums of the passes of a delta rule (glinfer/kernels/fused/delta.py). A row of x has q | k | v | G | beta of one token,
// each from a whole block on; k, v, G and beta begin at texels X_K, X_V, X_G and X_BETA. A row of cache has k | G | u of one of
// a sequence's last RING tokens, from C_G and C_U on: u is the correction that the token writes, and G the sum of the
// logarithms of the decays from the start of its span of SPAN tokens on. state0 has the states at the starts of even spans,
// state1 those of odd ones, STATE_ROWS rows a sequence. Row r of x belongs to row r of the table of rows, where sequences
// begin at multiples of EVERY; with ALONE there is one row, of the token at position of the only sequence.
// With PIECE rows may be consecutive tokens of one sequence. A row reads the state at the start of the first one's span, its
// window, and the corrections of the tokens since then.
#if ALONE
uniform int position;
#define POSITION_OF(row) position
#define SEQUENCE_OF(row) 0
#else
#include "common/row_info.glsl"
#define POSITION_OF(row) (int(ROW_TEXEL(row, 0).y) + int(ROW_TEXEL(row, 0).z) % EVERY)
#define SEQUENCE_OF(row) (int(ROW_TEXEL(row, 0).z) / EVERY)
#endif
#ifdef X_WIDTH
uniform sampler2D x;

vec4 given(int row, int texel) {
    ivec2 from = texel_position(row, texel, X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS);
    return FETCH(x, from, ivec2(X_WIDTH, X_HEIGHT));
}

// The logarithm of a row's decay since the start of its span.
float own_decay(int row, int head) {
    return given(row, X_G + (head >> 2))[head & 3];
}

// The written share of a row's correction (beta).
float share(int row, int head) {
    return given(row, X_BETA + (head >> 2))[head & 3];
}
#endif

#ifdef CACHE_WIDTH
uniform sampler2D cache;

// Part of the row of the token at a position of a sequence.
vec4 kept(int sequence, int position, int texel) {
    int slot = sequence * RING + position % RING;
    ivec2 from = texel_position(slot, texel, CACHE_TILES, CACHE_PITCH, CACHE_SLOT_STEP, CACHE_BLOCK_STEP, CACHE_COLUMNS);
    return FETCH(cache, from, ivec2(CACHE_WIDTH, CACHE_HEIGHT));
}

// The logarithm of a token's decay since the start of its span.
float kept_decay(int sequence, int position, int head) {
    return kept(sequence, position, C_G + (head >> 2))[head & 3];
}
#endif

// The first texel of a value head's key head; value heads that share one are consecutive or interleaved.
int key_of(int head) {
    return (IN_TURN == 1 ? head % KEY_HEADS : head / (HEADS / KEY_HEADS)) * KEY_TEXELS;
}

#if PIECE
// The first row of the consecutive tokens of one sequence that end at a row. Rows of a sequence are adjacent, so a
// bisection finds it.
int first_row(int row) {
    int first = row, sequence = SEQUENCE_OF(row), position = POSITION_OF(row);
    for (int step = 16; step > 0; step >>= 1) {  // a piece has at most 32 rows
        int to = first - step;
        if (to >= 0 && SEQUENCE_OF(to) == sequence && position - POSITION_OF(to) == row - to) first = to;
    }
    return first;
}
#else
#define first_row(row) (row)
#endif

// The position of the first token whose correction is read by rows from position `begin` on.
int window_of(int begin) {
    return begin - begin % SPAN;
}

#ifdef SCORES_WIDTH
uniform sampler2D scores;

// The weights of tokens 4 · texel to 4 · texel + 3 of the tokens that a row sees, for its key or its query.
vec4 weights(int row, int head, int texel) {
    ivec2 from = block_origin(row, head, SCORES_TILES, SCORES_PITCH, SCORES_SLOT_STEP, SCORES_BLOCK_STEP, SCORES_COLUMNS) +
                 lane_offset(texel & 15);
    return FETCH(scores, from, ivec2(SCORES_WIDTH, SCORES_HEIGHT));
}
#endif

#ifdef SOLVED_WIDTH
// Matrices [rows, rows] over the rows of a run, one of each head, in rows of a block a head.
uniform sampler2D solved;

// Four columns of a row of the inverse of a head (shaders/delta_solve.frag).
vec4 inverted(int row, int head, int texel) {
    ivec2 from = block_origin(row, head, SOLVED_TILES, SOLVED_PITCH, SOLVED_SLOT_STEP, SOLVED_BLOCK_STEP,
                              SOLVED_COLUMNS) + lane_offset(texel & 15);
    return FETCH(solved, from, ivec2(SOLVED_WIDTH, SOLVED_HEIGHT));
}
#endif

// Layouts and sums of the passes of a delta rule (glinfer/ops/fused/delta.py). A row of x has q | k | v | G | beta of one token,
// each from a whole block on; k, v, G and beta begin at texels X_K, X_V, X_G and X_BETA. A row of cache has k | G | u | S of one
// token, from C_G, C_U and C_S on: the correction u that the token writes, and one row of the state at the start of its span of
// SPAN tokens. G is the sum of the logarithms of the decays from the start of the span on. Row r of x belongs to row r of the
// table of rows; with ALONE there is one row, of the token at position, in a sequence at the cache's first slot.
// A token reads the state at the start of the previous span, whose rows are stored in that span, and the corrections of
// the tokens since then.
#if ALONE
uniform int position;
#define POSITION_OF(row) position
#define BASE_OF(row) 0
#else
#include "common/row_info.glsl"
#define POSITION_OF(row) int(ROW_TEXEL(row, 0).y)
#define BASE_OF(row) int(ROW_TEXEL(row, 0).z)
#endif
#ifdef X_WIDTH
uniform sampler2D x;

vec4 given(int row, int texel) {
    ivec2 from = block_origin(row, texel >> 4, X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS) + lane_offset(texel & 15);
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

vec4 kept(int slot, int texel) {
    ivec2 from = block_origin(slot, texel >> 4, CACHE_TILES, CACHE_PITCH, CACHE_SLOT_STEP, CACHE_BLOCK_STEP, CACHE_COLUMNS) +
                 lane_offset(texel & 15);
    return FETCH(cache, from, ivec2(CACHE_WIDTH, CACHE_HEIGHT));
}

// The logarithm of the decay of the token in a slot, since the start of its span.
float kept_decay(int slot, int head) {
    return kept(slot, C_G + (head >> 2))[head & 3];
}
#endif

// The first texel of a value head's key head; value heads that share one are consecutive or interleaved.
int key_of(int head) {
    return (IN_TURN == 1 ? head % KEY_HEADS : head / (HEADS / KEY_HEADS)) * KEY_TEXELS;
}

// The first token whose correction the token at `position` reads.
int first_seen(int position) {
    return max(position / SPAN - 1, 0) * SPAN;
}

#ifdef SCORES_WIDTH
uniform sampler2D scores;

// The weights of tokens 4 · texel to 4 · texel + 3 of the tokens that a row sees, for its key or its query.
vec4 weights(int row, int head, int texel) {
    int block = head * SPAN_BLOCKS + (texel >> 4);
    ivec2 from = block_origin(row, block, SCORES_TILES, SCORES_PITCH, SCORES_SLOT_STEP, SCORES_BLOCK_STEP, SCORES_COLUMNS) +
                 lane_offset(texel & 15);
    return FETCH(scores, from, ivec2(SCORES_WIDTH, SCORES_HEIGHT));
}

#ifdef CACHE_WIDTH
// The state before token `stop`, times the vector of a row of x that begins at texel `vector`: four elements of the
// values, at texel `texel` over all heads.
vec4 recalled(int row, int vector, int texel, int stop) {
    int position = POSITION_OF(row), base = BASE_OF(row);
    int head = texel / VALUE_TEXELS, first = first_seen(position);
    vec4 sum = vec4(0.0);
    if (first > 0) {
        vector += key_of(head);
        for (int i = 0; i < KEY_TEXELS; i++) {
            vec4 each = given(row, vector + i);
            for (int n = 0; n < 4; n++) sum += each[n] * kept(base + first + 4 * i + n, C_S + texel);
        }
        sum *= exp(own_decay(row, head) + kept_decay(base + first + SPAN - 1, head));
    }
    int slot = base + first, count = stop - first, n = 0;
    for (; n + 4 <= count; n += 4) {
        vec4 each = weights(row, head, n >> 2);
        for (int i = 0; i < 4; i++) sum += each[i] * kept(slot + n + i, C_U + texel);
    }
    if (n < count) {
        vec4 each = weights(row, head, n >> 2);
        for (int i = 0; n + i < count; i++) sum += each[i] * kept(slot + n + i, C_U + texel);
    }
    return sum;
}
#endif
#endif

#if PIECE
// The first row of the consecutive tokens of one sequence that end at a row. Rows of a sequence are adjacent, so a
// bisection finds it.
int first_row(int row) {
    int first = row, base = BASE_OF(row), position = POSITION_OF(row);
    for (int step = RUN_STEP; step > 0; step >>= 1) {
        int to = first - step;
        if (to >= 0 && BASE_OF(to) == base && position - POSITION_OF(to) == row - to) first = to;
    }
    return first;
}
#else
#define first_row(row) (row)
#endif

#if defined(SCORES_WIDTH) && PIECE
// The index of a row's own token among the tokens that it sees.
int own_number(int row) {
    int position = POSITION_OF(row);
    return position - first_seen(position);
}

// The weight of the n-th token that a row sees.
float weight(int row, int head, int n) {
    return weights(row, head, n >> 2)[n & 3];
}
#endif

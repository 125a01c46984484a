#version 300 es
// A short gated causal convolution over several rows:
//   y[r] = C[r] · (bias + Σ over k of taps[k] · u[p - LENGTH + 1 + k]), element by element, p the position of row r.
// x has B | C | x of each row, each starting at a block, C at block GATE_BLOCK; row ROWS · slot + n of x and y is in
// slot `slot` of texture n, in blocks. inputs has u = B · x of a sequence's last RING tokens (shaders/store_rows.frag); a
// sequence has EVERY slots in the table, and before its first position u is zero. With TOGETHER inputs has only tokens before
// the run, and the rows of a slot follow each other in a sequence; otherwise it has the rows' own u too. taps has LENGTH rows,
// and with BIASED one more, the bias. With ALONE there is one row, of the token at position of the only sequence.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
uniform sampler2D taps;
#if ALONE
uniform int position;
#else
#include "common/row_info.glsl"
#endif
EACH_ROW(DECLARE_TARGET)

vec4 tap(int k) {
    int texel = 16 * out_block + out_lane;
    return FETCH(taps, ivec2(k / TAPS_STACK * TAPS_TEXELS + texel, k % TAPS_STACK), ivec2(TAPS_WIDTH, TAPS_HEIGHT));
}

uniform sampler2D inputs;

// u of the token at a position of the sequence whose slots in the table begin at `base`.
vec4 kept(int position, int base) {
    int slot = base / EVERY * RING + (base % EVERY + position) % RING;
    ivec2 from = block_origin(slot, out_block, INPUTS_TILES, INPUTS_PITCH, INPUTS_SLOT_STEP, INPUTS_BLOCK_STEP, INPUTS_COLUMNS);
    return FETCH(inputs, from + lane_offset(out_lane), ivec2(INPUTS_WIDTH, INPUTS_HEIGHT));
}

// The texel of one of the three parts of the rows of a slot.
ivec2 part_of(int slot, int part) {
    return block_origin(slot, part * GATE_BLOCK + out_block, X_LAYOUT) + lane_offset(out_lane);
}

#if TOGETHER
#define DECLARE_SUM(n, X, R, Y, V, A, B, C, D, E, F, S) vec4 A;
#define START(n, X, R, Y, V, A, B, C, D, E, F, S) A = BIASED == 1 ? tap(LENGTH) : vec4(0.0);
#define ADD(n, X, R, Y, V, A, B, C, D, E, F, S) if (n >= row && n - row < LENGTH) A += tap(LENGTH - 1 - n + row) * u;
#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source == n) u = FETCH(X, IN_X(first), X_SIZE) * FETCH(X, IN_X(third), X_SIZE);
#define OWN(n, X, R, Y, V, A, B, C, D, E, F, S) add(n, FETCH(X, IN_X(first), X_SIZE) * FETCH(X, IN_X(third), X_SIZE));
#define ROW_SUM(n, A) A
EACH_ROW(DECLARE_SUM)

// Adds u of a row to the sums of those rows of this slot that see it; `row` is below 0 for rows before the slot.
void add(int row, vec4 u) {
    EACH_ROW(ADD)
}

// u of the row that is `back` rows before the first one of this slot.
vec4 made(int back) {
    int source = ROWS - 1 - (back - 1) % ROWS, slot = max(out_slot - 1 - (back - 1) / ROWS, 0);
    ivec2 first = part_of(slot, 0), third = part_of(slot, 2);
    vec4 u = vec4(0.0);
    EACH_ROW(TAKE)
    return u;
}

// From the oldest token on, as a row alone adds them.
void add_all() {
    EACH_ROW(START)
    uvec4 info = ROW_TEXEL(ROWS * out_slot, 0);
    for (int back = LENGTH - 1; back > 0; back--) {
        int row = ROWS * out_slot - back, seen = int(info.y) - back;
        uvec4 before = ROW_TEXEL(max(row, 0), 0);
        if (row >= 0 && before.z == info.z && int(before.y) == seen) add(-back, made(back));
        else if (seen >= 0) add(-back, kept(seen, int(info.z)));  // positions below 0 belong to another sequence
    }
    ivec2 first = part_of(out_slot, 0), third = part_of(out_slot, 2);
    EACH_ROW(OWN)
}
#else
#define ROW_SUM(n, A) row_sum(ROWS * out_slot + n)

vec4 row_sum(int row) {
#if ALONE
    int last = position, base = 0;
#else
    uvec4 info = ROW_TEXEL(row, 0);
    int last = int(info.y), base = int(info.z);
#endif
    vec4 sum = BIASED == 1 ? tap(LENGTH) : vec4(0.0);
    for (int k = 0; k < LENGTH; k++) {
        int seen = last - LENGTH + 1 + k;
        if (seen >= 0) sum += tap(k) * kept(seen, base);
    }
    return sum;
}
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) Y = inside ? FETCH(X, IN_X(second), X_SIZE) * ROW_SUM(n, A) : vec4(0.0);

void main() {
    locate();
    bool inside = 16 * out_block + out_lane < TAPS_TEXELS;  // the rest of the last block is padding
    ivec2 second = part_of(out_slot, 1);
#if TOGETHER
    add_all();
#endif
    EACH_ROW(FINISH)
}

#version 300 es
// A short gated causal convolution over several rows:
//   y[r] = C[r] · (bias + Σ over k of taps[k] · u[p - LENGTH + 1 + k]), element by element, p the position of row r.
// x has B | C | x of each row, each starting at a block, C at block GATE_BLOCK; row ROWS · slot + n of x and y is in
// slot `slot` of texture n, in blocks. cache has u = B · x of every position of the sequence (shaders/store_rows.frag);
// before the first one it is zero. taps has LENGTH rows, and with BIASED one more, the bias.
// With ALONE there is one row, of the token at position, whose sequence begins in the cache's first slot.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
uniform sampler2D cache, taps;
#if ALONE
uniform int position;
#else
#include "common/row_info.glsl"
#endif
EACH_ROW(DECLARE_TARGET)

vec4 tap(int k, int texel) {
    return FETCH(taps, ivec2(k / TAPS_STACK * TAPS_TEXELS + texel, k % TAPS_STACK), ivec2(TAPS_WIDTH, TAPS_HEIGHT));
}

// The sum for the token at a position of the sequence that begins at slot `base`.
vec4 convolved(int position, int base, int block, int lane) {
    int texel = 16 * block + lane;
#if BIASED
    vec4 sum = tap(LENGTH, texel);
#else
    vec4 sum = vec4(0.0);
#endif
    for (int k = 0; k < LENGTH; k++) {
        int seen = position - LENGTH + 1 + k;
        if (seen >= 0) {  // positions below 0 belong to another sequence
            // Padding rows of the last slot may be beyond the cache's end.
            ivec2 from = block_origin(min(base + seen, CACHE_SLOTS - 1), block, CACHE_TILES, CACHE_PITCH, CACHE_SLOT_STEP,
                                      CACHE_BLOCK_STEP, CACHE_COLUMNS) + lane_offset(lane);
            sum += tap(k, texel) * FETCH(cache, from, ivec2(CACHE_WIDTH, CACHE_HEIGHT));
        }
    }
    return sum;
}

#if ALONE
#define ROW_SUM(n) convolved(position, 0, out_block, out_lane)
#else
vec4 row_sum(int row, int block, int lane) {
    uvec4 info = ROW_TEXEL(row, 0);
    return convolved(int(info.y), int(info.z), block, lane);
}
#define ROW_SUM(n) row_sum(ROWS * out_slot + n, out_block, out_lane)
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) Y = inside ? FETCH(X, IN_X(from), X_SIZE) * ROW_SUM(n) : vec4(0.0);

void main() {
    locate();
    bool inside = 16 * out_block + out_lane < TAPS_TEXELS;  // the rest of the last block is padding
    ivec2 from = block_origin(out_slot, GATE_BLOCK + out_block, X_PLACES) + lane_offset(out_lane);
    EACH_ROW(FINISH)
}

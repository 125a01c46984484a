#version 300 es
// Stores the cache entries of several rows, each in the slot of its token: keys, values and queries, or
// with FACTOR_BLOCK the product of two parts of a row, the second of which begins at that block. shaders/gemm.frag wrote row
// ROWS · slot + n to slot `slot` of texture n. With STRIP the rows are consecutive in one sequence, and the draw covers a
// strip of the cache; with ALONE there is one row, and the draw covers its slot; otherwise the vertex shader sets the row
// of each block of the cache.
// With OUT_SCALES_AT the cache has bytes, and from that block on their scales (common/bytes.glsl); further blocks of x are not stored.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/half.glsl"
#ifdef OUT_SCALES_AT
#include "common/bytes.glsl"
#endif
EACH_ROW(DECLARE_INPUT)
#if STRIP
#include "common/row_info.glsl"
#elif !defined(ALONE)
flat in int row;
#endif
#ifdef OUT_SCALES_AT
layout(location = 0) out ivec4 y;
#else
layout(location = 0) out vec4 y;
#endif

#ifdef FACTOR_BLOCK
#define VALUE(X) stored(FETCH(X, IN_X(from), X_SIZE) * FETCH(X, IN_X(other), X_SIZE))
#else
#define VALUE(X) FETCH(X, IN_X(from), X_SIZE)
#endif
#define TAKE(n, X, R, Y, V, A, B, C, D, E, F, S) if (source == n) y = VALUE(X);
// Texels from `first` to `last` of a block. A loop without a step skips the other rows, where llvmpipe would run a condition.
#define LOOK(n, X, R, Y, V, A, B, C, D, E, F, S) \
    for (int i = source == n ? first : last; i < last; i++) { \
        vec4 v = FETCH(X, IN_X(from + lane_offset(i)), X_SIZE); \
        if (i < 8) peaks.x = peak_of(peaks.x, v); \
        else peaks.y = peak_of(peaks.y, v); \
        if (i == out_lane) own = v; \
    }

void main() {
    locate();
#if STRIP
    uvec4 info = ROW_TEXEL(0, 0);
    int row = out_slot - int(info.y + info.z);
#elif defined(ALONE)
    const int row = 0;
#endif
    int source = row % ROWS;
#ifdef OUT_SCALES_AT
    // A texel of scales belongs to a block of two groups; a texel of numbers belongs to one group.
    bool scales = out_block >= OUT_SCALES_AT;
    int block = scales ? min(16 * (out_block - OUT_SCALES_AT) + out_lane, OUT_SCALES_AT - 1) : out_block;
    int first = scales ? 0 : out_lane & 8, last = scales ? 16 : first + 8;
    ivec2 from = block_origin(row / ROWS, block, X_LAYOUT);
    uvec2 peaks = uvec2(0u);
    vec4 own = vec4(0.0);
    EACH_ROW(LOOK)
    uvec2 bits = uvec2(scale_bits(peaks.x), scale_bits(peaks.y));
    y = scales ? scale_texel(bits.x, bits.y) : bytes_of(own, first == 0 ? bits.x : bits.y);
#else
    ivec2 from = block_origin(row / ROWS, out_block, X_LAYOUT) + lane_offset(out_lane);
#ifdef FACTOR_BLOCK
    ivec2 other = block_origin(row / ROWS, FACTOR_BLOCK + out_block, X_LAYOUT) + lane_offset(out_lane);
#endif
    y = vec4(0.0);
    EACH_ROW(TAKE)
#endif
}

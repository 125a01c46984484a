#version 300 es
// Attention of ROWS queries at a time: softmax of their scores over the cached tokens, times the values, for each head.
// Scores, cache and rows are those of shaders/tile_scores.frag. Output: row ROWS · tile + n in slot tile of
// target n, head by head.
// With SINKS each head has a sink (common/sinks.glsl).
// With CACHE_SCALES_AT the cache has bytes, and from that block on their scales (common/bytes.glsl).
// The order of sums is that of shaders/cached_values.frag, so a row gives the same numbers in both, with PARTS too.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
#include "common/seen.glsl"
#include "common/cache.glsl"
uniform int row_slots;  // slots of rows in this run
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_TARGET)
#ifdef PARTS
flat in int part;
#endif

#define LEAST -1e29  // below any score, and above the -1e30 of unseen tokens
#include "common/sinks.glsl"
// The steps for a texel of the quad are a macro, whose constant a numbers sums (shaders/gemm.frag says why).
#if QUAD
#define SHARE 4
#define EACH_TEXEL(DO) { const int a = 0; DO } { const int a = 1; DO } { const int a = 2; DO } { const int a = 3; DO }
#else
#define SHARE 1
#define EACH_TEXEL(DO) { const int a = 0; DO }
#endif

#define DECLARE_SUMS(n, X, R, Y, V, A, B, C, D, E, F, S) \
    vec4 V = vec4(LEAST_SCORE), E = vec4(0.0), A[SHARE]; float S; EACH_TEXEL(A[a] = vec4(0.0);)
#define SCORE(X) FETCH(X, scores_at, X_SIZE)
#define PEAKS(n, X, R, Y, V, A, B, C, D, E, F, S) V = max(V, SCORE(X));
#define PEAK(n, X, R, Y, V, A, B, C, D, E, F, S) S = ceil(max(max(V.x, V.y), max(V.z, V.w)));
#ifdef PARTS
#define ADD_WEIGHT(n, X, R, Y, V, A, B, C, D, E, F, S) E += exp(SCORE(X) - S);
#define WEIGHT(n, X, R, Y, V, A, B, C, D, E, F, S) V = exp(SCORE(X) - S);
#else
#define WEIGHT(n, X, R, Y, V, A, B, C, D, E, F, S) V = exp(SCORE(X) - S); E += V;
#endif
// The values of four adjacent tokens, for one texel of the quad. Tokens after the last one held have weights only in
// padding rows, and their values may be left from a sequence with NaN: 0 × NaN is NaN.
#ifdef CACHE_SCALES_AT
#define SCALE(t) scales_in(FETCH(cache, (scales_from + ivec2(4 * (t), 0)), CACHE_SIZE))
#define VALUE(t) (vec4(FETCH(cache, (from + ivec2(4 * (t) + (a & 1), a >> 1)), CACHE_SIZE)) * scale[t])
#else
#define VALUE(t) FETCH(cache, (from + ivec2(4 * (t) + (a & 1), a >> 1)), CACHE_SIZE)
#endif
#define ADD_VALUES \
    vec4 t0 = VALUE(0), t1 = VALUE(1), t2 = VALUE(2), t3 = VALUE(3); \
    t0 = held.x ? t0 : vec4(0.0); \
    t1 = held.y ? t1 : vec4(0.0); \
    t2 = held.z ? t2 : vec4(0.0); \
    t3 = held.w ? t3 : vec4(0.0); \
    EACH_ROW(ADD_WEIGHTED)
#define ADD_WEIGHTED(n, X, R, Y, V, A, B, C, D, E, F, S) \
    A[a] += V.x * t0; A[a] += V.y * t1; A[a] += V.z * t2; A[a] += V.w * t3;
#if QUAD
#define COMBINE(A, E, S) \
    all = quad_max(S, out_lane); \
    scale = exp(S - all); \
    E = quad_sum(E * scale, out_lane); \
    EACH_TEXEL(A[a] *= scale;) \
    total = quad_share(A, out_lane);
#else
#define COMBINE(A, E, S) total = A[0]; all = S;
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    COMBINE(A, E, S) \
    Y = head < HEADS ? total / (dot(E, vec4(1.0)) SINK_WEIGHT(all)) : vec4(0.0);

void main() {
    locate();
    uvec4 info = ROW_TEXEL(ROWS * out_slot, 0);
    int position = int(info.y), base = int(info.z), last = int(ROW_TEXEL(ROWS * out_slot, 1).w);
    int reach = SEEN(ROWS - 1);
    last = min(reach, last);
    int texel = out_block * 16 + out_lane;
    int head = texel / HEAD_TEXELS;
    DECLARE_SINK(min(head, HEADS - 1))
    int start = out_lane & (SHARE - 1);
    int value = (KV_HEADS + min(head, HEADS - 1) / (HEADS / KV_HEADS)) * HEAD_TEXELS + texel % HEAD_TEXELS - start;
    // Padding rows of the last slot may reach beyond the end of the cache, where tokens have weight zero for other rows.
    // All members of a quad take the same number of steps (common/quad.glsl); tokens that no row sees have weight zero too.
    int groups = min(reach / (4 * SHARE) * SHARE + SHARE, (CACHE_SLOTS - base) / 4);
    EACH_ROW(DECLARE_SUMS)
#if WINDOW
    start += max(position - WINDOW + 1, 0) / 16 * 4;  // no row sees earlier tokens
#endif
    int group = start;
    if (group < groups) for (;;) {
        ivec2 scores_at = block_origin((group >> 4) * row_slots + out_slot, head, X_LAYOUT) + lane_offset(group & 15);
        EACH_ROW(PEAKS)
        group += SHARE;
        if (group >= groups) break;
    }
    EACH_ROW(PEAK)
    group = start;
#ifdef PARTS
    if (group < groups) for (;;) {
        ivec2 scores_at = block_origin((group >> 4) * row_slots + out_slot, head, X_LAYOUT) + lane_offset(group & 15);
        EACH_ROW(ADD_WEIGHT)
        group += SHARE;
        if (group >= groups) break;
    }
    group = max(16 * part + (start & (SHARE - 1)), start);
    groups = min(groups, 16 * part + 16);
#endif
    if (group < groups) for (;;) {
        ivec2 scores_at = block_origin((group >> 4) * row_slots + out_slot, head, X_LAYOUT) + lane_offset(group & 15);
        ivec2 from = texel_position(base + 4 * group, value, CACHE_LAYOUT);
#ifdef CACHE_SCALES_AT
        int block = value >> 4;
        ivec2 scales_from = block_origin(base + 4 * group, CACHE_SCALES_AT + (block >> 4), CACHE_LAYOUT) + lane_offset(block & 15);
        vec2 scale0 = SCALE(0), scale1 = SCALE(1), scale2 = SCALE(2), scale3 = SCALE(3);
        vec4 scale = (value & 8) == 0 ? vec4(scale0.x, scale1.x, scale2.x, scale3.x)
                                      : vec4(scale0.y, scale1.y, scale2.y, scale3.y);
#endif
        bvec4 held = lessThanEqual(4 * group + ivec4(0, 1, 2, 3), ivec4(last));
        EACH_ROW(WEIGHT)
        EACH_TEXEL(ADD_VALUES)
        group += SHARE;
        if (group >= groups) break;
    }
    vec4 total;
    float all, scale;  // all: the largest score of all four fragments
    EACH_ROW(FINISH)
}

#version 300 es
// One query's attention: softmax of its scores over the cached tokens, times their values, for each head.
// scores and cache [positions, k | v | q] are laid out as in shaders/cached_scores.frag, a head HEAD_TEXELS texels wide.
// Output [1, heads · HEAD_TEXELS · 4] in blocks, head by head.
// With QUAD the four fragments of a quad share the tokens. Each subtracts its own largest score, rounded up; then all four
// agree on the largest of all.
// With MANY there is a query for each of MANY sequences, and row r of the output belongs to sequence r.
// With SINKS each head has a sink (common/sinks.glsl).
// With CACHE_SCALES_AT the cache has bytes, and from that block on their scales (common/bytes.glsl).
// With PARTS each instance adds up the values of 64 tokens, and blending adds the instances up. With STATS each takes the
// largest score and the sum of all weights from the statistics of shaders/cached_scores.frag, not from every score.
#include "common/block_pass.glsl"
uniform sampler2D scores;
#include "common/cache.glsl"
#ifdef MANY
#include "common/row_info.glsl"
#else
uniform int position;
#endif
#ifdef PARTS
flat in int part;
#endif
#ifdef STATS
uniform sampler2D stats;
#endif
layout(location = 0) out vec4 y;

#define LEAST -1e29  // below any score, and above the -1e30 of unseen tokens
#include "common/sinks.glsl"
// The steps for token t and texel g of the quad are a macro, not a loop (shaders/gemm.frag says why).
#if QUAD
#define GROUPS 4
#define EACH_GROUP(DO, t) DO(t, 0) DO(t, 1) DO(t, 2) DO(t, 3)
#else
#define GROUPS 1
#define EACH_GROUP(DO, t) DO(t, 0)
#endif
#define EACH_VALUE(DO) EACH_GROUP(DO, 0) EACH_GROUP(DO, 1) EACH_GROUP(DO, 2) EACH_GROUP(DO, 3)
#define START(t, g) sum[g] = vec4(0.0);
#define FETCH_VALUE(t, g) v[GROUPS * t + g] = vec4(FETCH(cache, (from + ivec2(4 * t + (g & 1), g >> 1)), CACHE_SIZE));
#ifdef CACHE_SCALES_AT
#define SCALE_VALUE(t, g) v[GROUPS * t + g] *= (value & 8) == 0 ? scale[t].x : scale[t].y;
#define SCALE_OF(t) scales_in(FETCH(cache, (scales_from + ivec2(4 * t, 0)), CACHE_SIZE))
#endif
// Unseen values may be left from a sequence with NaN, and 0 × NaN is NaN.
#define ADD_VALUE(t, g) sum[g] += weight[t] > 0.0 ? weight[t] * v[GROUPS * t + g] : vec4(0.0);

vec4 score(int row, int head, int group) {
#ifdef MANY
    int slot = MANY * (group >> 4) + row;
#else
    int slot = group >> 4;
#endif
    ivec2 from = block_origin(slot, head, SCORES_TILES, SCORES_PITCH, SCORES_SLOT_STEP, SCORES_BLOCK_STEP, SCORES_COLUMNS);
    return FETCH(scores, IN_SCORES(from + lane_offset(group & 15)), ivec2(SCORES_WIDTH, SCORES_HEIGHT));
}

#ifdef STATS
// The statistics of the 16 tokens from 64 · slot + 16 · quad on.
vec2 stats_of(int slot, int quad, int head) {
    ivec2 from = block_origin(slot, head, STATS_TILES, STATS_PITCH, STATS_SLOT_STEP, STATS_BLOCK_STEP, STATS_COLUMNS);
    return FETCH(stats, (from + lane_offset(4 * quad)), ivec2(STATS_WIDTH, STATS_HEIGHT)).xy;
}
#endif

void main() {
    locate();
#ifdef MANY
    uvec4 info = ROW_TEXEL(out_slot, 0);
    int position = int(info.y), base = int(info.z);
#else
    const int base = 0;
#endif
    int texel = out_block * 16 + out_lane;
    int head = texel / HEAD_TEXELS;
    DECLARE_SINK(min(head, HEADS - 1))
    // The head's values, and this fragment's texel of them.
    int value = (KV_HEADS + min(head, HEADS - 1) / (HEADS / KV_HEADS)) * HEAD_TEXELS + texel % HEAD_TEXELS;
#if QUAD
    int start = out_lane & 3, stride = 4;
    value -= start;
#else
    int start = 0, stride = 1;
#endif
    // All members of a quad take the same number of steps (common/quad.glsl); tokens after position have weight zero.
    int groups = position / (4 * stride) * stride + stride;
#if WINDOW
    start += max(position - WINDOW + 1, 0) / 16 * 4;  // no query sees earlier tokens
#endif
#ifdef STATS
    int slots = position / 64 + 1, first_slot = start >> 4;
    float peak = LEAST_SCORE;
    for (int slot = first_slot; slot < slots; slot++) peak = max(peak, stats_of(slot, start & 3, head).x);
    peak = quad_max(peak, out_lane);
    float exponentials = 0.0;
    for (int slot = first_slot; slot < slots; slot++) {
        vec2 found = stats_of(slot, start & 3, head);
        exponentials += found.y * exp(found.x - peak);
    }
    vec4 weights = vec4(exponentials, vec3(0.0));
#else
    vec4 peaks = vec4(LEAST_SCORE);
    for (int group = start; group < groups; group += stride) peaks = max(peaks, score(out_slot, head, group));
    float peak = ceil(max(max(peaks.x, peaks.y), max(peaks.z, peaks.w)));
    vec4 weights = vec4(0.0);
#endif
    vec4 sum[GROUPS];
    EACH_GROUP(START, 0)
#ifdef PARTS
#ifndef STATS
    for (int group = start; group < groups; group += stride) weights += exp(score(out_slot, head, group) - peak);
#endif
    for (int group = max(16 * part + (start & (stride - 1)), start); group < min(groups, 16 * part + 16); group += stride) {
#else
    for (int group = start; group < groups; group += stride) {
#endif
        // Four tokens side by side, and of each the texels of the quad.
        ivec2 from = texel_position(base + 4 * group, value, CACHE_LAYOUT);
#ifdef CACHE_SCALES_AT
        int block = value >> 4;
        ivec2 scales_from = block_origin(base + 4 * group, CACHE_SCALES_AT + (block >> 4), CACHE_TILES, CACHE_PITCH,
                                         CACHE_SLOT_STEP, CACHE_BLOCK_STEP, CACHE_COLUMNS) + lane_offset(block & 15);
#endif
        vec4 v[4 * GROUPS];
        EACH_VALUE(FETCH_VALUE)
#ifdef CACHE_SCALES_AT
        vec2 scale[4] = vec2[4](SCALE_OF(0), SCALE_OF(1), SCALE_OF(2), SCALE_OF(3));
        EACH_VALUE(SCALE_VALUE)
#endif
        vec4 weight = exp(score(out_slot, head, group) - peak);
#ifndef PARTS
        weights += weight;
#endif
        EACH_VALUE(ADD_VALUE)
    }
#if QUAD
#ifdef STATS
    float all = peak;
    weights = quad_sum(weights, out_lane);
#else
    float all = quad_max(peak, out_lane);
    float scale = exp(peak - all);
    weights = quad_sum(weights * scale, out_lane);
    for (int g = 0; g < GROUPS; g++) sum[g] *= scale;
#endif
    vec4 total = quad_share(sum, out_lane);
#else
    vec4 total = sum[0];
    float all = peak;
#endif
    // The block is padding after the last head.
    y = head < HEADS ? total / (dot(weights, vec4(1.0)) SINK_WEIGHT(all)) : vec4(0.0);
}

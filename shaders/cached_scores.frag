#version 300 es
// Attention scores of one query against every cached key: score[token] = SCORE_SCALE · q · k[token], for each head.
// cache [positions, k | v | q] is in blocks, a head HEAD_TEXELS texels wide; HEADS / KV_HEADS heads of queries share one
// of keys, and the query is in slot position. Output: a slot is 64 tokens, a block of it one head, a fragment four tokens.
// With SCORE_CAP a score is bounded by common/soft_cap.glsl. Tokens after position, and tokens before a WINDOW, get -1e30;
// the cache has room for whole slots of tokens.
// With STATS the four fragments of a quad also write the largest of its 16 scores and the sum of exp(score - largest).
// With MANY there is a query for each of MANY sequences: rows gives its position, and the slot, a multiple of 64, where
// its keys begin; its scores of group g are in slot MANY · g + row.
// With CACHE_SCALES_AT the cache has bytes, and from that block on their scales (common/bytes.glsl), but no queries. Then, or
// where the cache is another layer's, queries, k | v | q in blocks, has the query of row `row`, or the only one.
#include "common/block_pass.glsl"
#include "common/soft_cap.glsl"
#include "common/cache.glsl"
#ifdef QUERIES_BLOCKS
uniform sampler2D queries;
#endif
#ifdef MANY
#include "common/row_info.glsl"
#else
uniform int position;
#endif
layout(location = 0) out vec4 y;
#ifdef STATS
layout(location = 1) out vec4 stats;
#endif

// The position of a texel of a slot's vector; 16 slots from a multiple of 16 on are side by side.
ivec2 position_of(int slot, int texel) {
    return texel_position(slot, texel, CACHE_LAYOUT);
}

// A texel of a query, which may be stored once for its whole sequence.
vec4 query_texel(int row, int slot, int texel) {
#if defined(QUERIES_BLOCKS)
    ivec2 from = texel_position(row, texel, QUERIES_TILES, QUERIES_PITCH, QUERIES_SLOT_STEP, QUERIES_BLOCK_STEP, QUERIES_COLUMNS);
    return FETCH(queries, IN_QUERIES(from), ivec2(QUERIES_WIDTH, QUERIES_HEIGHT));
#elif defined(CACHE_ASIDE)
    ivec2 from = aside_origin(slot / CACHE_EVERY, (texel >> 4) - CACHE_ASIDE, CACHE_ASIDE_SLOTS, CACHE_COLUMNS,
                              CACHE_ASIDE_LINE) + lane_offset(texel & 15);
    return FETCH(cache, from, CACHE_SIZE);
#else
    return FETCH(cache, position_of(slot, texel), CACHE_SIZE);
#endif
}

// The steps for a group of four keys are a macro, not a loop (shaders/gemm.frag says why).
#if QUAD
#define GROUPS 4
#define SHARE 4
#define EACH_GROUP(DO) DO(0) DO(1) DO(2) DO(3)
#else
#define GROUPS 1
#define SHARE 1
#define EACH_GROUP(DO) DO(0)
#endif
#define START(g) sum[g] = vec4(0.0);
#define KEY(n) k[n] = vec4(FETCH(cache, (from + ivec2(4 * (n), 0)), CACHE_SIZE));
#define FETCH_KEYS(g) KEY(4 * g) KEY(4 * g + 1) KEY(4 * g + 2) KEY(4 * g + 3)
#define DOTS(g) vec4(dot(q, k[4 * g]), dot(q, k[4 * g + 1]), dot(q, k[4 * g + 2]), dot(q, k[4 * g + 3]))
#ifdef CACHE_SCALES_AT
#define SCALE(n) scale[n] = scales_in(FETCH(cache, (scales_from + ivec2(4 * (n), 0)), CACHE_SIZE));
#define FETCH_SCALES(g) SCALE(4 * g) SCALE(4 * g + 1) SCALE(4 * g + 2) SCALE(4 * g + 3)
#define SCALES(g, part) vec4(scale[4 * g].part, scale[4 * g + 1].part, scale[4 * g + 2].part, scale[4 * g + 3].part)
#define ADD_DOTS(g) sum[g] += DOTS(g) * (((key + i) & 8) == 0 ? SCALES(g, x) : SCALES(g, y));
#else
#define ADD_DOTS(g) sum[g] += DOTS(g);
#endif

void main() {
    locate();
#ifdef MANY
    int row = out_slot % MANY;
    uvec4 info = ROW_TEXEL(row, 0);
    int position = int(info.y), base = int(info.z), group = out_slot / MANY;
#else
    const int base = 0, row = 0;
    int group = out_slot;
#endif
    int query = QUERY_AT + out_block * HEAD_TEXELS, key = out_block / (HEADS / KV_HEADS) * HEAD_TEXELS;
    int own = 64 * group + 4 * out_lane;
    int member = out_lane & (SHARE - 1), first = own - 4 * member;
    vec4 sum[GROUPS];
    EACH_GROUP(START)
    int end = HEAD_TEXELS;
#ifdef MANY
    if (first > position) end = 0;  // other sequences may be longer
#endif
#if WINDOW
    int oldest = position - WINDOW + 1;
    if (first + 4 * SHARE <= oldest) end = 0;
#else
    const int oldest = 0;
#endif
    for (int i = member; i < end;) {
#ifdef CACHE_SCALES_AT
        // The scales of this block of each key.
        int block = (key + i) >> 4, stop = min(end, 16 * block + 16 - key);
        ivec2 scales_from = position_of(base + first, 16 * CACHE_SCALES_AT + block);
        vec2 scale[4 * GROUPS];
        EACH_GROUP(FETCH_SCALES)
        for (;;) {
#endif
        vec4 q = query_texel(row, base + position, query + i);
        ivec2 from = position_of(base + first, key + i);
        vec4 k[4 * GROUPS];
        EACH_GROUP(FETCH_KEYS)
        EACH_GROUP(ADD_DOTS)
        i += SHARE;
#ifdef CACHE_SCALES_AT
            if (i >= stop) break;
        }
#endif
    }
    ivec4 next = ivec4(0, 1, 2, 3);
#if QUAD
    // Keys after position may be left from a rewound sequence. They must not reach the sums, whose rounding depends on all
    // exchanged values.
    for (int g = 0; g < GROUPS; g++) sum[g] = mix(vec4(0.0), sum[g], lessThanEqual(first + 4 * g + next, ivec4(position)));
    vec4 total = quad_share(sum, out_lane);
#else
    vec4 total = sum[0];
#endif
    total = CAPPED(total * float(SCORE_SCALE));
    y = mix(vec4(-1e30), total, lessThanEqual(own + next, ivec4(position)));
#if WINDOW
    y = mix(vec4(-1e30), y, greaterThanEqual(own + next, ivec4(oldest)));
#endif
#ifdef STATS
    float peak = quad_max(max(max(y.x, y.y), max(y.z, y.w)), out_lane);
    stats = vec4(peak, quad_sum(vec4(dot(exp(y - peak), vec4(1.0)), vec3(0.0)), out_lane).x, 0.0, 0.0);
#endif
}

#version 300 es
// Attention scores of ROWS queries at a time against cached keys: score[r, token] = SCORE_SCALE · q[r] · k[token], for
// each head.
// The rows of a slot are consecutive in one sequence: row n is its token position + n, and the sequence's keys begin at
// cache slot base, a multiple of 16. cache [slots, k | v | q] is in blocks, and so are the queries, k | v | q of row ROWS ·
// tile + n in slot tile of texture n. A head is HEAD_TEXELS texels wide; HEADS / KV_HEADS query heads share a key head.
// Output: slot row_slots · group + tile, block head: of each row 64 tokens from 64 · group on, four a fragment; -1e30
// after the row's own token and before its WINDOW, and unwritten for groups of 16 tokens that come after all rows of
// the slot. With AHEAD a row sees tokens after its own too (common/seen.glsl), and base is a multiple of ROWS.
// With CACHE_SCALES_AT the cache has bytes, and from that block on their scales (common/bytes.glsl), and no queries.
// The order of sums is that of shaders/cached_scores.frag, so a row gives the same numbers in both.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
#include "common/seen.glsl"
#include "common/soft_cap.glsl"
#include "common/cache.glsl"
uniform int row_slots;  // slots of rows in this run
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_TARGET)

// The steps for a group of four keys are a macro, whose constant g numbers sums (shaders/gemm.frag says why).
#if QUAD
#define SHARE 4
#define EACH_GROUP(DO) { const int g = 0; DO } { const int g = 1; DO } { const int g = 2; DO } { const int g = 3; DO }
#else
#define SHARE 1
#define EACH_GROUP(DO) { const int g = 0; DO }
#endif

#define DECLARE_SUMS(n, X, R, Y, V, A, B, C, D, E, F, S) vec4 V, A[SHARE]; EACH_GROUP(A[g] = vec4(0.0);)
#define FETCH_QUERY(n, X, R, Y, V, A, B, C, D, E, F, S) V = FETCH(X, query_at, X_SIZE);
#define KEY(i) vec4(FETCH(cache, (from + ivec2(4 * (i), 0)), CACHE_SIZE))
#ifdef CACHE_SCALES_AT
#define SCALE(i) scales_in(FETCH(cache, (scales_from + ivec2(4 * (i), 0)), CACHE_SIZE))
#define FETCH_SCALES \
    vec2 s0 = SCALE(4 * g), s1 = SCALE(4 * g + 1), s2 = SCALE(4 * g + 2), s3 = SCALE(4 * g + 3); \
    low[g] = vec4(s0.x, s1.x, s2.x, s3.x); \
    high[g] = vec4(s0.y, s1.y, s2.y, s3.y);
#define FETCH_KEYS vec4 k0 = KEY(4 * g), k1 = KEY(4 * g + 1), k2 = KEY(4 * g + 2), k3 = KEY(4 * g + 3), \
    scale = ((key + i) & 8) == 0 ? low[g] : high[g];
#define DOTS(V) (vec4(dot(V, k0), dot(V, k1), dot(V, k2), dot(V, k3)) * scale)
#else
#define FETCH_KEYS vec4 k0 = KEY(4 * g), k1 = KEY(4 * g + 1), k2 = KEY(4 * g + 2), k3 = KEY(4 * g + 3);
#define DOTS(V) vec4(dot(V, k0), dot(V, k1), dot(V, k2), dot(V, k3))
#endif
#define ADD_DOTS(n, X, R, Y, V, A, B, C, D, E, F, S) A[g] += DOTS(V);
#define ADD_KEYS FETCH_KEYS EACH_ROW(ADD_DOTS)
#define KEPT(n, g, A) mix(vec4(0.0), A[g], lessThanEqual((first + 4 * (g) + next), ivec4(SEEN(n))))
#if QUAD
// Keys after a row's own token must not reach the sums, as in shaders/cached_scores.frag.
#define TOTAL(n, A) quad_share(vec4[4](KEPT(n, 0, A), KEPT(n, 1, A), KEPT(n, 2, A), KEPT(n, 3, A)), out_lane)
#else
#define TOTAL(n, A) A[0]
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    total = TOTAL(n, A); \
    total = CAPPED(total * float(SCORE_SCALE)); \
    Y = mix(vec4(-1e30), total, lessThanEqual(own + next, ivec4(SEEN(n)))); \
    LEAVE_OUT(n, Y)
#if WINDOW
#define LEAVE_OUT(n, Y) Y = mix(vec4(-1e30), Y, greaterThan(own + next, ivec4(position + n - WINDOW)));
#else
#define LEAVE_OUT(n, Y)
#endif

void main() {
    locate();
    int group = out_slot / row_slots, tile = out_slot % row_slots;
    uvec4 info = ROW_TEXEL(ROWS * tile, 0);
    int position = int(info.y), base = int(info.z);
#ifdef AHEAD
    int last = int(ROW_TEXEL(ROWS * tile, 1).w);
#endif
    int query = QUERY_AT + out_block * HEAD_TEXELS, key = out_block / (HEADS / KV_HEADS) * HEAD_TEXELS;
    int own = 64 * group + 4 * out_lane;
    int member = out_lane & (SHARE - 1), first = own - 4 * member;
    // Skip tokens after all rows' own tokens; no pass reads their scores.
    if (first > SEEN(ROWS - 1)) discard;
    EACH_ROW(DECLARE_SUMS)
    int i = member;
#if WINDOW
    // Tokens before all rows' windows have no sums.
    if (first + 4 * SHARE <= position - WINDOW + 1) i = HEAD_TEXELS;
    while (i < HEAD_TEXELS) {
#else
    for (;;) {
#endif
#ifdef CACHE_SCALES_AT
        // The scales of this block of each key.
        int block = (key + i) >> 4, stop = min(HEAD_TEXELS, 16 * block + 16 - key);
        ivec2 scales_from = block_origin(base + first, CACHE_SCALES_AT + (block >> 4), CACHE_LAYOUT) + lane_offset(block & 15);
        vec4 low[SHARE], high[SHARE];
        EACH_GROUP(FETCH_SCALES)
        for (;;) {
#endif
        ivec2 query_at = texel_position(tile, query + i, X_LAYOUT);
        ivec2 from = texel_position(base + first, key + i, CACHE_LAYOUT);
        EACH_ROW(FETCH_QUERY)
        EACH_GROUP(ADD_KEYS)
        i += SHARE;
#ifdef CACHE_SCALES_AT
            if (i >= stop) break;
        }
#endif
#if WINDOW
    }
#else
        if (i >= HEAD_TEXELS) break;
    }
#endif
    ivec4 next = ivec4(0, 1, 2, 3);
    vec4 total;
    EACH_ROW(FINISH)
}

#version 300 es
// Second of three passes that choose a token (glinfer/kernels/fused/choice.py): ranks. For the five candidates of its piece, the
// four best and the other one of choice_list.frag, a fragment bounds the number and the weight of the row's tokens before
// them. The lower bound counts larger logits; the upper bound also equal logits and unlisted tokens, none of which has a
// larger logit than the fifth of its piece. A weight is exp((logit - largest logit) · inverse_temperature). Texel p of a row is
// - in low the least weight before each of the four, 3e38 for one that top-k or min-p certainly drops;
// - in high the greatest, 3e38 for one that they may drop; -1 in both for the token with the largest logit, which stays;
// - in further low of the fifth, so of all unlisted tokens; high of the other candidate; and the least and the greatest
//   weight that top-k keeps of the piece.
#include "common/flat.glsl"
#include "common/row_info.glsl"
#define LIST(name, texel) TEXEL(name, LIST_TEXELS * at.x + (texel), LIST_WIDTH, LIST_HEIGHT)
#define LEAST -3.4e38
#define DROPPED 3e38
#define MARGIN 1e-4  // relative; sums of weights are more exact on every renderer
#define UNROLL 8  // texels to fetch together
uniform sampler2D best;
uniform sampler2D facts;
uniform sampler2D other;
uniform int first_row;
layout(location = 0) out vec4 low;
layout(location = 1) out vec4 high;
layout(location = 2) out vec4 further;

// The number of unlisted tokens of a piece.
float unlisted(int piece) {
    return float(max(0, (VOCAB - piece + PIECES - 1) / PIECES - 4));
}

// Counts a token of another piece, with this logit and weight: T is vec4 for the four candidates, float for the other one.
#define COUNT(T, larger, equals, count, mass, more, more_mass, weight) { \
    T before = larger, level = equals; \
    count += before; \
    mass += before * (weight); \
    more += level; \
    more_mass += level * (weight); \
}
#define COUNT_FOUR(logit, weight) \
    COUNT(vec4, vec4(lessThan(own, vec4(logit))), vec4(equal(own, vec4(logit))), count, mass, more, more_mass, weight)
#define COUNT_OTHER(logit, weight) \
    COUNT(float, (logit > last ? 1.0 : 0.0), (logit == last ? 1.0 : 0.0), sum.x, sum.y, sum.z, sum.w, weight) \
    before_fifth += logit > fifth ? vec2(1.0, weight) : vec2(0.0);

void main() {
    ivec2 at = output_place();
    int row = min(first_row + at.x, TABLE_ROWS - 1), piece = at.y;
    uvec4 filters = ROW_TEXEL(row, 0), choice = ROW_TEXEL(row, 1);
    float top_k = filters.x == 0u ? float(VOCAB) : float(filters.x), min_p = uintBitsToFloat(filters.z);
    float inverse_temperature = uintBitsToFloat(choice.y), largest = LEAST;
    for (int start = 0; start < PIECES; start += 2 * UNROLL) {
        float v[2 * UNROLL];
        for (int j = 0; j < 2 * UNROLL; j++) v[j] = LIST(best, start + j).x;
        for (int j = 0; j < 2 * UNROLL; j++) largest = max(largest, v[j]);
    }
    vec4 own = LIST(best, piece), own_other = LIST(other, piece);
    vec2 own_facts = LIST(facts, piece).zw, before_fifth = vec2(0.0);  // their number and weight
    float last = own_other.z, fifth = own_facts.y;
    vec4 count = vec4(0.0), mass = vec4(0.0), more = vec4(0.0), more_mass = vec4(0.0), sum = vec4(0.0);
    for (int start = 0; start < PIECES; start += UNROLL) {
        vec4 v[UNROLL];
        vec2 fact[UNROLL];
        for (int j = 0; j < UNROLL; j++) {
            v[j] = LIST(best, start + j);
            fact[j] = LIST(facts, start + j).zw;
        }
        for (int j = 0; j < UNROLL; j++) {
            // -inf: the tokens of its own piece are in order.
            if (start + j == piece) {
                v[j] = vec4(2.0 * LEAST);
                fact[j].y = 2.0 * LEAST;
            }
            vec4 weights = exp((v[j] - largest) * inverse_temperature);
            COUNT_FOUR(v[j].x, weights.x)
            COUNT_FOUR(v[j].y, weights.y)
            COUNT_FOUR(v[j].z, weights.z)
            COUNT_FOUR(v[j].w, weights.w)
            COUNT_OTHER(v[j].x, weights.x)
            COUNT_OTHER(v[j].y, weights.y)
            COUNT_OTHER(v[j].z, weights.z)
            COUNT_OTHER(v[j].w, weights.w)
            float hidden = unlisted(start + j), hidden_mass = max(fact[j].x, 0.0) * weights.w;
            vec4 ahead = vec4(lessThanEqual(own, vec4(fact[j].y)));
            more += ahead * hidden;
            more_mass += ahead * hidden_mass;
            sum.zw += last <= fact[j].y ? vec2(hidden, hidden_mass) : vec2(0.0);
        }
    }
    vec4 weights = exp((own - largest) * inverse_temperature);
    float rest = max(own_facts.x, 0.0) * weights.w;
    vec2 weight_of = exp((vec2(fifth, last) - largest) * inverse_temperature);  // the fifth, the other candidate
    vec3 sums = vec3(weights.x, weights.x + weights.y, weights.x + weights.y + weights.z);
    count += vec4(0.0, 1.0, 2.0, 3.0);
    mass += vec4(0.0, sums);
    before_fifth += vec2(4.0, sums.z + weights.w);
    sum += vec4(4.0, sums.z + weights.w, max(unlisted(piece) - 1.0, 0.0), rest);
    vec4 may = vec4(lessThan(count, vec4(top_k))), must = vec4(lessThan(count + more, vec4(top_k)));
    further.z = dot(must, weights) + (filters.x == 0u ? rest : 0.0);
    bool may_fifth = fifth > LEAST && before_fifth.x < top_k;
    further.w = dot(may, weights) + (may_fifth ? rest : 0.0);
    bvec4 enough = greaterThanEqual(weights, vec4(min_p * (1.0 + MARGIN)));
    bvec4 perhaps = greaterThanEqual(weights, vec4(min_p * (1.0 - MARGIN)));
    low = mix(vec4(DROPPED), mass, bvec4(may * vec4(perhaps)));
    high = mix(vec4(DROPPED), mass + more_mass, bvec4(must * vec4(enough)));
    bvec4 first = equal(count + more, vec4(0.0));
    low = mix(low, vec4(-1.0), first);
    high = mix(high, vec4(-1.0), first);
    bool there = own_other.x > LEAST;
    further.x = may_fifth && weight_of.x >= min_p * (1.0 - MARGIN) ? before_fifth.y : DROPPED;
    further.y = there && sum.x + sum.z < top_k && weight_of.y >= min_p * (1.0 + MARGIN) ? sum.y + sum.w : DROPPED;
}

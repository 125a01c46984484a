#version 300 es
// First of three passes that choose a filtered token (glinfer/kernels/fused/choice.py): it summarises each piece of the
// vocabulary. Piece p of PIECES has the tokens p, p + PIECES, …; step s is the token p + s · PIECES. Row r of the outputs
// belongs to row first_row + r of the table, which names the row of logits, row ROWS · slot + n in slot `slot` of texture n.
// Texel p of a row is
// - in best the four largest logits of the piece, largest first, in ties the lowest id first, -3.4e38 for none;
// - in drawn their scores: logit · inverse_temperature + Gumbel noise, or the logit if greedy;
// - in facts their steps, s0 + 4096 · s1 and s2 + 4096 · s3; the weight of the piece's other tokens, in units of the fourth's,
//   or -1 where a logit is NaN; and the fifth largest logit, -3.4e38 for none;
// - in other the best score among the other tokens, its step and its logit, and 0.
// With MASK the logits of tokens whose bit is 0 in the table's row of mask count as -inf (common/allowed.glsl). With CHANGED
// they are changed first, by the table `changes` and the row's tokens in picks (common/changes.glsl).
#include "common/blocks.glsl"
#include "common/flat.glsl"
#include "common/noise.glsl"
#include "common/regions.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
#include "common/allowed.glsl"
#include "common/changes.glsl"
#define FETCH_LOGITS(n, X, R, Y, V, A, B, C, D, E, F, S) \
    if (source % ROWS == n) v[j] = FETCH(X, IN_X(texel), X_SIZE);
#define LEAST -3.4e38
#define UNROLL 4  // texels to fetch together
EACH_ROW(DECLARE_INPUT)
uniform int first_row;
layout(location = 0) out vec4 best;
layout(location = 1) out vec4 drawn;
layout(location = 2) out vec4 facts;
layout(location = 3) out vec4 other;

void main() {
    ivec2 at = output_place();
    int row = min(first_row + at.x, TABLE_ROWS - 1);
    uvec4 choice = ROW_TEXEL(row, 1);
    uint noise_key = choice.x;
    float inverse_temperature = uintBitsToFloat(choice.y), rest = 0.0, fifth = LEAST;
    bool noise = (choice.z & 1u) != 0u, lost = false;
    int source = int(choice.w), piece = at.y, steps = (VOCAB - piece + PIECES - 1) / PIECES;
    ivec2 offset = lane_offset((piece % 64) >> 2);
    vec4 step_of = vec4(0.0);
#ifdef CHANGED
    find_changes(ROW_TEXEL(row, 0).w, source, first_slot + at.x);
#endif
    best = drawn = vec4(LEAST);
    other = vec4(LEAST, 0.0, LEAST, 0.0);
    for (int start = 0; start < steps; start += UNROLL) {
        vec4 v[UNROLL];
#ifdef MASK
        uint bits[UNROLL];
#endif
#ifdef CHANGED
        vec4 change[UNROLL];
#endif
        for (int j = 0; j < UNROLL; j++) {
            int token = piece + min(start + j, steps - 1) * PIECES;
            ivec2 texel = block_origin(source / ROWS, token >> 6, X_LAYOUT) + offset;
            EACH_ROW(FETCH_LOGITS)
#ifdef MASK
            bits[j] = allowed_bits(row, token);
#endif
#ifdef CHANGED
            change[j] = CHANGE_OF(source, token);
#endif
        }
        for (int j = 0; j < UNROLL; j++) {
            if (start + j >= steps) break;
            // Selects one of four without arithmetic, since the others may be NaN or infinite.
            vec2 half_texel = (piece & 2) == 0 ? v[j].xy : v[j].zw;
            float logit = (piece & 1) == 0 ? half_texel.x : half_texel.y;
            // Test the bits, since compilers may assume that no number is NaN.
            lost = lost || (floatBitsToUint(logit) & 0x7fffffffu) > 0x7f800000u;
#ifdef CHANGED
            int token = piece + (start + j) * PIECES;
            logit = changed(logit, token, (piece & 1) == 0 ? change[j].xy : change[j].zw);
#endif
#ifdef MASK
            logit = (bits[j] & 1u) > 0u ? logit : uintBitsToFloat(0xff800000u);
#endif
            float score = logit;
            if (noise) score = logit * inverse_temperature + gumbel(uint(piece + (start + j) * PIECES), noise_key);
            bvec4 beaten = lessThan(best, vec4(logit)), beaten_before = bvec4(false, beaten.xyz);
            // The token off the list is this one, or the fourth that it replaces.
            vec3 left = beaten.w ? vec3(drawn.w, step_of.w, best.w) : vec3(score, float(start + j), logit);
            float fourth = best.w;
            best = mix(best, mix(vec4(logit), best.xxyz, beaten_before), beaten);
            drawn = mix(drawn, mix(vec4(score), drawn.xxyz, beaten_before), beaten);
            step_of = mix(step_of, mix(vec4(start + j), step_of.xxyz, beaten_before), beaten);
            if (left.x > other.x) other.xyz = left;
            fifth = max(fifth, left.z);
            float weight = exp((left.z - best.w) * inverse_temperature);
            rest = beaten.w ? (fourth > LEAST ? rest + 1.0 : rest) * weight : rest + weight;
        }
    }
    facts = vec4(step_of.x + 4096.0 * step_of.y, step_of.z + 4096.0 * step_of.w, lost ? -1.0 : rest, fifth);
}

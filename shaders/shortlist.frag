#version 300 es
// The likeliest tokens of some rows of logits, and bounds on all others. Each output row belongs to a row of the table,
// which names the row of logits, row ROWS · slot + n in slot `slot` of texture n, and says how its token is drawn.
// Piece p of PIECES has the tokens p, p + PIECES, …; step s is the token p + s · PIECES. Fragment p of a row writes
// - to best the four largest logits of its piece, largest first, of equal ones the lowest id first, -3.4e38 for none;
// - to facts their steps, s0 + 4096 · s1 and s2 + 4096 · s3; the sum of exp((logit - best.w) · inverse_temperature)
//   over the piece's other tokens, or -1 where one of its logits is NaN; and with noise its largest drawn score.
// With MASK the logits of tokens whose bit is 0 in the output row's row of mask count as -inf (common/allowed.glsl).
#include "common/blocks.glsl"
#include "common/flat.glsl"
#include "common/noise.glsl"
#include "common/regions.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
#include "common/allowed.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
#define FETCH_LOGITS(n, X, R, Y, V, A, B, C, D, E, F, S) \
    if (source % ROWS == n) v[j] = FETCH(X, IN_X(texel), ivec2(X_WIDTH, X_HEIGHT));
#define LEAST -3.4e38
#define UNROLL 4  // texels that are fetched together
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 best;
layout(location = 1) out vec4 facts;

void main() {
    ivec2 at = output_place();
    uvec4 choice = ROW_TEXEL(min(at.x, TABLE_ROWS - 1), 1);
    uint noise_key = choice.x;
    float inverse_temperature = uintBitsToFloat(choice.y), rest = 0.0, drawn = LEAST;
    bool noise = (choice.z & 1u) != 0u, lost = false;
    int source = int(choice.w), piece = at.y, steps = (VOCAB - piece + PIECES - 1) / PIECES;
    ivec2 offset = lane_offset((piece % 64) >> 2);
    vec4 top = vec4(LEAST), step_of = vec4(0.0);
    for (int start = 0; start < steps; start += UNROLL) {
        vec4 v[UNROLL];
#ifdef MASK
        uint bits[UNROLL];
#endif
        for (int j = 0; j < UNROLL; j++) {
            int token = piece + min(start + j, steps - 1) * PIECES;
            ivec2 texel = block_origin(source / ROWS, token >> 6, X_PLACES) + offset;
            EACH_ROW(FETCH_LOGITS)
#ifdef MASK
            bits[j] = allowed_bits(min(at.x, TABLE_ROWS - 1), token);
#endif
        }
        for (int j = 0; j < UNROLL; j++) {
            if (start + j >= steps) break;
            // Selects one of four without arithmetic, since the others may be NaN or infinite.
            vec2 half_texel = (piece & 2) == 0 ? v[j].xy : v[j].zw;
            float logit = (piece & 1) == 0 ? half_texel.x : half_texel.y, last = top.w;
            // Tested by its bits, since a compiler may assume that nothing is NaN.
            lost = lost || (floatBitsToUint(logit) & 0x7fffffffu) > 0x7f800000u;
#ifdef MASK
            logit = (bits[j] & 1u) > 0u ? logit : uintBitsToFloat(0xff800000u);
#endif
            bvec4 beaten = lessThan(top, vec4(logit)), beaten_before = bvec4(false, beaten.xyz);
            top = mix(top, mix(vec4(logit), top.xxyz, beaten_before), beaten);
            step_of = mix(step_of, mix(vec4(start + j), step_of.xxyz, beaten_before), beaten);
            // The unlisted logit is this one, or the fourth that it has replaced; the sum is in units of the new fourth.
            float weight = exp((beaten.w ? last - top.w : logit - top.w) * inverse_temperature);
            rest = beaten.w ? (last > LEAST ? rest + 1.0 : rest) * weight : rest + weight;
            if (noise) {
                float score = logit * inverse_temperature + gumbel(uint(piece + (start + j) * PIECES), noise_key);
                if (score > drawn) drawn = score;
            }
        }
    }
    best = top;
    facts = vec4(step_of.x + 4096.0 * step_of.y, step_of.z + 4096.0 * step_of.w, lost ? -1.0 : rest, drawn);
}

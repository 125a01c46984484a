#version 300 es
// Last of three passes that choose a token (glinfer/kernels/fused/choice.py): lane n of a block reads the pieces n, n + 16, …
// and writes (score, id, unsure, 0) of the best candidate that top-p keeps, in ties the lowest id.
// unsure is 1 if the choice may be another token: the best candidate may be dropped, unlisted tokens may be better, a logit
// is NaN, or a score infinite. Slot first_slot + r belongs to row first_row + r of the table.
#include "common/block_pass.glsl"
#include "common/row_info.glsl"
#define LIST(name, piece) FETCH(name, list_place(LIST_TEXELS * row + (piece)), ivec2(LIST_WIDTH, LIST_HEIGHT))
#define LEAST -3.4e38
#define DROPPED 3e38
#define MARGIN 1e-4  // as in choice_rank.frag
#define UNROLL 16  // texels to fetch together
#define TOGETHER 4  // pieces to fetch together
uniform sampler2D drawn;
uniform sampler2D facts;
uniform sampler2D other;
uniform sampler2D low;
uniform sampler2D high;
uniform sampler2D further;
uniform int first_row;
uniform int first_slot;
layout(location = 0) out vec4 y;

ivec2 list_place(int texel) {
    return ivec2(texel % LIST_WIDTH, texel / LIST_WIDTH);
}

// The best so far, or a better candidate: (score, id, unsure).
vec3 better(vec3 best, float score, float id, bool unsure) {
    bool wins = score > best.x || (score == best.x && id < best.y);
    return wins ? vec3(score, id, unsure ? 1.0 : 0.0) : best;
}

void main() {
    locate();
    int row = out_slot - first_slot;
    float top_p = uintBitsToFloat(ROW_TEXEL(min(first_row + row, TABLE_ROWS - 1), 0).y);
    vec2 total = vec2(0.0);
    for (int start = 0; start < PIECES; start += UNROLL) {
        vec2 v[UNROLL];
        for (int j = 0; j < UNROLL; j++) v[j] = LIST(further, start + j).zw;
        for (int j = 0; j < UNROLL; j++) total += v[j];
    }
    // A candidate stays, or may stay, if less weight than this precedes it.
    float sure = top_p < 1.0 ? top_p * total.x * (1.0 - MARGIN) : DROPPED;
    float perhaps = top_p < 1.0 ? top_p * total.y * (1.0 + MARGIN) : DROPPED;
    vec3 best = vec3(LEAST, 0.0, 1.0);
    for (int start = out_lane; start < PIECES; start += 16 * TOGETHER) {
        vec4 score[TOGETHER], fact[TOGETHER], rest[TOGETHER], least[TOGETHER], most[TOGETHER], last[TOGETHER];
        for (int j = 0; j < TOGETHER; j++) {
            int piece = start + 16 * j;
            score[j] = LIST(drawn, piece);
            fact[j] = LIST(facts, piece);
            rest[j] = LIST(other, piece);
            least[j] = LIST(low, piece);
            most[j] = LIST(high, piece);
            last[j] = LIST(further, piece);
        }
        for (int j = 0; j < TOGETHER; j++) {
            float piece = float(start + 16 * j);
            vec2 second = floor(fact[j].xy / 4096.0), first = fact[j].xy - 4096.0 * second;
            vec4 ids = vec4(first.x, second.x, first.y, second.y) * float(PIECES) + piece;
            for (int i = 0; i < 4; i++) {
                bool may = least[j][i] < perhaps && score[j][i] > LEAST;
                if (may) best = better(best, score[j][i], ids[i], most[j][i] >= sure);
            }
            // The other candidate represents all unlisted tokens, even if it is dropped itself.
            bool may = rest[j].x > LEAST && last[j].x < perhaps;
            if (may) best = better(best, rest[j].x, rest[j].y * float(PIECES) + piece, last[j].y >= sure);
            if (fact[j].z < 0.0) best = vec3(-LEAST, 0.0, 1.0);
        }
    }
    y = vec4(best.xy, best.x < 3e38 ? best.z : 1.0, 0.0);
}

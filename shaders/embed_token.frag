#version 300 es
// The embedding of one token at one position: EMBEDDING_SCALE · wte[token] + wpe[position], [1, DIM] in blocks.
// token ≥ 0 is taken as it is; token -1 means the best of the 16 candidates that shaders/pick.frag left in slot
// position - 1 of picks: the largest score, the lowest id where equal.
#include "common/block_pass.glsl"
#include "common/table.glsl"
uniform sampler2D picks;
uniform int token;
uniform int position;
layout(location = 0) out vec4 y;

int best_candidate() {
    ivec2 from = block_origin(position - 1, 0, PICKS_TILES, PICKS_PITCH, PICKS_SLOT_STEP, PICKS_BLOCK_STEP, PICKS_COLUMNS);
    vec2 best = FETCH(picks, from, ivec2(PICKS_WIDTH, PICKS_HEIGHT)).xy;
    for (int i = 1; i < 16; i++) {
        vec2 other = FETCH(picks, (from + ivec2(i & 3, i >> 2)), ivec2(PICKS_WIDTH, PICKS_HEIGHT)).xy;
        if (other.x > best.x || (other.x == best.x && other.y < best.y)) best = other;
    }
    return int(best.y);
}

void main() {
    Place at = output_place();
    int column = at.block * 16 + at.lane;
    int id = token >= 0 ? token : best_candidate();
    y = column < DIM_TEXELS ? embedding(id, position, column) : vec4(0.0);
}

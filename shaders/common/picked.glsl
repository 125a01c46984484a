// The best of the 16 candidates that shaders/pick.frag wrote to one slot of picks: the largest score, in ties the lowest
// id.
uniform sampler2D picks;

int best_candidate(int slot) {
    ivec2 from = block_origin(slot, 0, PICKS_TILES, PICKS_PITCH, PICKS_SLOT_STEP, PICKS_BLOCK_STEP, PICKS_COLUMNS);
    vec2 best = FETCH(picks, from, ivec2(PICKS_WIDTH, PICKS_HEIGHT)).xy;
    for (int i = 1; i < 16; i++) {
        vec2 other = FETCH(picks, (from + ivec2(i & 3, i >> 2)), ivec2(PICKS_WIDTH, PICKS_HEIGHT)).xy;
        if (other.x > best.x || (other.x == best.x && other.y < best.y)) best = other;
    }
    return int(best.y);
}

// The experts that rows chose, as shaders/route.frag wrote them: texel i of slot r is (expert, weight, 0, 0) of choice i of row
// r. With TALLY_WIDTH also the number of choices of each expert, as shaders/tally_experts.frag counted them: over all rows in
// slot 0, over each SPAN rows in the slots after it. The choices of one expert fill groups of ROWS, expert 0
// first, in the order of rows.
#define CHOICE_LAYOUT CHOICE_TILES, CHOICE_PITCH, CHOICE_SLOT_STEP, CHOICE_BLOCK_STEP, CHOICE_COLUMNS
uniform sampler2D choice;

vec4 choice_at(int row, int i) {
    return FETCH(choice, texel_position(row, i, CHOICE_LAYOUT), ivec2(CHOICE_WIDTH, CHOICE_HEIGHT));
}

int expert_at(int row, int i) {
    return int(choice_at(row, i).x + 0.5);
}

#ifdef TALLY_WIDTH
#define TALLY_LAYOUT TALLY_TILES, TALLY_PITCH, TALLY_SLOT_STEP, TALLY_BLOCK_STEP, TALLY_COLUMNS
uniform sampler2D tally;

// The counts of experts 4t to 4t + 3.
ivec4 tally_at(int slot, int t) {
    ivec2 from = texel_position(slot, t, TALLY_LAYOUT);
    return ivec4(FETCH(tally, from, ivec2(TALLY_WIDTH, TALLY_HEIGHT)) + 0.5);
}

// The number of choices of an expert in span number `span`.
int count_in(int span, int expert) {
    return tally_at(1 + span, expert >> 2)[expert & 3];
}

int groups_of(int count) {
    return (count + ROWS - 1) / ROWS;
}
#endif

// Matrices [rows, rows] over the rows of a run, one of each head, in rows of HEADS · RUN_BLOCKS blocks of 64 columns.
uniform sampler2D solved;

// Four columns of a row of the inverse of a head (shaders/delta_solve.frag).
vec4 inverted(int row, int head, int texel) {
    ivec2 from = block_origin(row, head * RUN_BLOCKS + (texel >> 4), SOLVED_TILES, SOLVED_PITCH, SOLVED_SLOT_STEP,
                              SOLVED_BLOCK_STEP, SOLVED_COLUMNS) + lane_offset(texel & 15);
    return FETCH(solved, from, ivec2(SOLVED_WIDTH, SOLVED_HEIGHT));
}

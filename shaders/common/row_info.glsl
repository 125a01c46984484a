// The table of a run's rows, described in glinfer/ops/fused/rows.py: two texels a row, INFO_TEXELS. The first has the row's
// token, its position in its sequence, the cache slot where that sequence begins, and a target or the number of an adapter;
// the second the numbers for the choice of its next token. ANGLES_OF is the row of the tables of angles by which a row turns;
// with ROPE_SET, the positions of one of two sets, a bit says that it is in the second.
uniform highp usampler2D rows;
#define ROW_TEXEL(row, i) \
    FETCH(rows, ivec2(((row) / ROWS_STACK) * ROWS_TEXELS + (i), (row) % ROWS_STACK), ivec2(ROWS_WIDTH, ROWS_HEIGHT))
#ifdef ROPE_SET
#define ANGLES_OF(row) (int(ROW_TEXEL(row, 0).y) + ((ROW_TEXEL(row, 1).z & 2u) != 0u ? ROPE_SET : 0))
#else
#define ANGLES_OF(row) int(ROW_TEXEL(row, 0).y)
#endif

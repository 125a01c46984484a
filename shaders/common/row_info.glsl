// The table of a run's rows (glinfer/kernels/fused/rows.py), two texels a row. The first has the row's token, its
// position in its sequence, the cache slot where the sequence begins, and a target token or the number of an adapter; the
// second has the numbers for the choice of its next token. ANGLES_OF is a row's row in the tables of angles; with ROPE_SET,
// the number of positions in one of two sets, a bit selects the second set; with ROPE_BACK the bits from 2 on are
// subtracted from the position; with ROPE_BY_ROW it is the row itself.
uniform highp usampler2D rows;
#define ROW_TEXEL(row, i) \
    FETCH(rows, ivec2(((row) / ROWS_STACK) * ROWS_TEXELS + (i), (row) % ROWS_STACK), ivec2(ROWS_WIDTH, ROWS_HEIGHT))
#ifdef ROPE_BY_ROW
#define ANGLES_OF(row) (row)
#elif defined(ROPE_BACK)
#define ANGLES_OF(row) (int(ROW_TEXEL(row, 0).y) - int(ROW_TEXEL(row, 1).z >> 2u))
#elif defined(ROPE_SET)
#define ANGLES_OF(row) (int(ROW_TEXEL(row, 0).y) + ((ROW_TEXEL(row, 1).z & 2u) != 0u ? ROPE_SET : 0))
#else
#define ANGLES_OF(row) int(ROW_TEXEL(row, 0).y)
#endif

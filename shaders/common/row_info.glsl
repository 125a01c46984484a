// What a run says of its rows: two texels of `rows` a row, INFO_TEXELS, with the row's token, its position in its
// sequence, the cache slot where that sequence begins, and a target; then what the choice of its next token needs.
// glinfer/ops/fused/rows.py has the same in NumPy.
uniform highp usampler2D rows;
#define ROW_TEXEL(row, i) \
    FETCH(rows, ivec2(((row) / ROWS_STACK) * ROWS_TEXELS + (i), (row) % ROWS_STACK), ivec2(ROWS_WIDTH, ROWS_HEIGHT))

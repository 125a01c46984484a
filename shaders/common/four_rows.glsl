// Outputs with one number for each row of another tensor: element i of the output belongs to row i.
// The rows of the four elements in texel (row, texel) of the output; padding repeats the last row.
ivec4 rows_of(ivec2 at) {
    return at.x * OUT_COLS + min(columns_of(at.y), ivec4(OUT_COLS - 1));
}

// Outputs with one number for each row of another tensor: element i of the output belongs to row i.
// The rows of the four elements of a texel of the output, at (row, texel); a texel's padding repeats its last row.
ivec4 rows_of(ivec2 at) {
    return at.x * OUT_COLS + min(columns_of(at.y), ivec4(OUT_COLS - 1));
}

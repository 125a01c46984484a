// Outputs that have one number for each row of another tensor: element i of the output is that of row i.
// The rows of the four elements of a texel of the output, at (row, texel); a texel's padding has its last row again.
ivec4 rows_of(ivec2 at) {
    return at.x * OUT_COLS + min(columns_of(at.y), ivec4(OUT_COLS - 1));
}

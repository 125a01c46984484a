// The positions of the elements of matrices in single-channel textures, for reading and for writing.
//
// Usually the texel of (row, col) is (x=col, y=row). With WRAPPED (some matrix of this draw has an edge longer
// than the renderer's largest texture) element i = row * cols + col lies at (i % width, i / width); for a
// matrix that did fit, width == cols and both rules agree. cols is always the matrix's full column count.
precision highp float;
precision highp int;
precision highp sampler2D;
precision highp isampler2D;

ivec2 texel_of(int row, int col, int cols, int width) {
#ifdef WRAPPED
    int i = row * cols + col;
    return ivec2(i % width, i / width);
#else
    return ivec2(col, row);
#endif
}

float at(sampler2D matrix, int row, int col, int cols) {
    return texelFetch(matrix, texel_of(row, col, cols, textureSize(matrix, 0).x), 0).r;
}

int at(isampler2D matrix, int row, int col, int cols) {
    return texelFetch(matrix, texel_of(row, col, cols, textureSize(matrix, 0).x), 0).r;
}

// (row, col) of the element that this fragment writes. The last texels of a wrapped texture hold no element:
// their fragments are thrown away. OUT_WIDTH and OUT_ROWS are the target's width and the matrix's rows.
ivec2 output_element(int cols) {
    ivec2 texel = ivec2(gl_FragCoord.xy);
#ifdef WRAPPED
    int i = texel.y * OUT_WIDTH + texel.x;
    if (i / cols >= OUT_ROWS) discard;
    return ivec2(i / cols, i % cols);
#else
    return texel.yx;
#endif
}

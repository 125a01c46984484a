// The layout of tensors of any shape, four elements a texel, as in glinfer/gl/layouts/flat.py: the texels of all rows are
// numbered in order. A tensor X has X_TEXELS texels a row in a texture of X_WIDTH × X_HEIGHT; the width is a power of two.
// The last texel of a row is padded with zeros, which every pass that writes the tensor must keep.
precision highp float;
precision highp int;
precision highp sampler2D;
precision highp isampler2D;
precision highp usampler2D;
#include "common/fetch.glsl"

// Texel number `texel` of a tensor.
ivec2 texel_position(int texel, int width) {
    return ivec2(uint(texel) % uint(width), uint(texel) / uint(width));
}
#define TEXEL(name, texel, WIDTH, HEIGHT) FETCH(name, texel_position(texel, WIDTH), ivec2(WIDTH, HEIGHT))

// (row, texel of the row) that this fragment writes. The rest of the last line is padding, which no pass reads.
ivec2 output_place() {
    int texel = int(gl_FragCoord.y) * OUT_WIDTH + int(gl_FragCoord.x);
    return ivec2(texel / OUT_TEXELS, texel % OUT_TEXELS);
}

// The columns of the four elements of a texel.
ivec4 columns_of(int texel) {
    return 4 * texel + ivec4(0, 1, 2, 3);
}

// y with zeros in the padding, from column `cols` on; rows of whole texels have none.
vec4 trimmed(vec4 y, int texel, int cols) {
    return cols % 4 == 0 ? y : mix(vec4(0.0), y, lessThan(columns_of(texel), ivec4(cols)));
}
ivec4 trimmed(ivec4 y, int texel, int cols) {
    return cols % 4 == 0 ? y : y * ivec4(lessThan(columns_of(texel), ivec4(cols)));
}

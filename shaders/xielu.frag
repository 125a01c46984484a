#version 300 es
// y = xIELU(x) (common/xielu.glsl), element by element; x and y of one shape, four elements a texel. The learned numbers are
// positive and negative [1, 1].
#include "common/flat.glsl"
#include "common/xielu.glsl"
uniform sampler2D x;
uniform sampler2D positive;
uniform sampler2D negative;
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
    float above = TEXEL(positive, 0, POSITIVE_WIDTH, POSITIVE_HEIGHT).x, below = TEXEL(negative, 0, NEGATIVE_WIDTH, NEGATIVE_HEIGHT).x;
    y = xielu(TEXEL(x, at.x * X_TEXELS + at.y, X_WIDTH, X_HEIGHT), above, below);  // it keeps 0
}

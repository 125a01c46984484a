#version 300 es
// y = activation(x), element by element; x and y of one shape, four elements a texel.
#include "common/flat.glsl"
#include "common/activation.glsl"
uniform sampler2D x;
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
    vec4 v = TEXEL(x, at.x * X_TEXELS + at.y, X_WIDTH, X_HEIGHT);
    y = activations(v);  // every activation keeps 0
}

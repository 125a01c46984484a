#version 300 es
// y = factor · x, element by element; x and y have one shape and layout.
#include "common/flat.glsl"
uniform sampler2D x;
uniform float factor;
layout(location = 0) out vec4 y;

void main() {
    y = factor * FETCH(x, ivec2(gl_FragCoord.xy), ivec2(X_WIDTH, X_HEIGHT));
}

#version 300 es
// y[r, c] = x[r, c], to check that numbers survive a fragment pass. x, y [rows, COLS].
#include "common/matrix.glsl"
uniform sampler2D x;
layout(location = 0) out float y;

void main() {
    ivec2 e = output_element(COLS);
    y = at(x, e.x, e.y, COLS);
}

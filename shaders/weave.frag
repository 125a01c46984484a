#version 300 es
// Puts together what shaders/attend.frag has left in ROWS targets x0, x1, …: texel ROWS · c + i of a row lies in texel c of
// that row in target i.
#include "common/flat.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 y;

#define PICK(n, X, R, Y, V, A, B, C, D, E, S) if (member == n) y = TEXEL(X, texel, X0_WIDTH, X0_HEIGHT);

void main() {
    ivec2 at = output_place();
    int member = at.y % ROWS, texel = at.x * X0_TEXELS + at.y / ROWS;
    y = vec4(0.0);
    EACH_ROW(PICK)
}

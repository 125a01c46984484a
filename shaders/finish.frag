#version 300 es
// Joins the ROWS targets x0, x1, … of shaders/matmul.frag, where row ROWS · g + i of each matrix is in row g of target i;
// or, with one target, adds up the PARTS sums, PART_ROWS rows apart. Then finishes the sums: scale, bias,
// activation, residual, mask (common/product.glsl).
#include "common/product.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 y;

#define PICK(n, X, R, Y, V, A, B, C, D, E, F, S) \
    if (member == n) sum = TEXEL(X, (group * X0_TEXELS + at.y), X0_WIDTH, X0_HEIGHT);

void main() {
    ivec2 at = output_place();
    vec4 sum = vec4(0.0);
#if ROWS > 1
    int row = at.x % M, member = row % ROWS, group = (at.x / M) * ROW_GROUPS + row / ROWS;
    EACH_ROW(PICK)
#else
    for (int part = 0; part < PARTS; part++) sum += TEXEL(x0, ((part * PART_ROWS + at.x) * X0_TEXELS + at.y), X0_WIDTH, X0_HEIGHT);
#endif
    y = finished(sum, at);
}

#version 300 es
// Joins the ROWS targets x0, x1, … of shaders/attend.frag, where texel ROWS · c + i of a row is in texel c of that row in
// target i. The PARTS parts are stacked, OUT_ROWS rows each, with their peak and sum in texel OUT_TEXELS of
// their rows: their values are scaled to the highest peak, added up, and divided by the total sum.
#include "common/flat.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
layout(location = 0) out vec4 y;

#define PICK(n, X, R, Y, V, A, B, C, D, E, F, S) if (texel % ROWS == n) found = TEXEL(X, from, X0_WIDTH, X0_HEIGHT);

vec4 texel_of(int row, int texel) {
    int from = row * X0_TEXELS + texel / ROWS;
    vec4 found = vec4(0.0);
    EACH_ROW(PICK)
    return found;
}

void main() {
    ivec2 at = output_place();
#if PARTS > 1
    float peak = texel_of(at.x, OUT_TEXELS).x;
    for (int part = 1; part < PARTS; part++) peak = max(peak, texel_of(part * OUT_ROWS + at.x, OUT_TEXELS).x);
    vec4 sum = vec4(0.0);
    float total = 0.0;
    for (int part = 0; part < PARTS; part++) {
        vec2 told = texel_of(part * OUT_ROWS + at.x, OUT_TEXELS).xy;
        float scale = exp(told.x - peak);
        sum += scale * texel_of(part * OUT_ROWS + at.x, at.y);
        total += scale * told.y;
    }
    y = sum / total;
#else
    y = texel_of(at.x, at.y);
#endif
}

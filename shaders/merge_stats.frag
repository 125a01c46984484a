#version 300 es
// Statistics of larger parts of rows (common/stats.glsl): texel p of a row of the output merges the parts p · FAN to
// (p + 1) · FAN - 1 of the same row of `stats`, means and variances by Chan, Golub and LeVeque (1983), sums of exponents
// by Milakov and Gimelshein (2018).
#include "common/flat.glsl"
#include "common/stats_of.glsl"
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
    int first = at.y * FAN;
    y = merged_parts(at.x, first, min(first + FAN, STATS_TEXELS));
}

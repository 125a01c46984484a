#version 300 es
// y = log(sum(exp(x))) - x[target] of each row of logits x [rows, COLS], four rows a texel: element i of the output, in
// row-major order, belongs to row i. `stats` are the EXPONENTS of x (common/stats.glsl); `targets` have the layout
// of the output. The loss of a target outside the columns is 0.
#include "common/flat.glsl"
#include "common/stats_of.glsl"
#include "common/four_rows.glsl"
uniform sampler2D x;
uniform isampler2D targets;
layout(location = 0) out vec4 y;

float loss(int row, int target) {
    vec4 s = stats_of(row);
    int column = clamp(target, 0, COLS - 1), lane = column & 3;
    vec4 v = TEXEL(x, row * X_TEXELS + (column >> 2), X_WIDTH, X_HEIGHT);
    float logit = lane < 2 ? (lane == 0 ? v.x : v.y) : (lane == 2 ? v.z : v.w);
    float found = s.y == 0.0 ? log(float(COLS)) : (s.x - logit) + log(s.y);
    return column == target ? found : 0.0;
}

void main() {
    ivec2 at = output_place();
    ivec4 row = rows_of(at), target = TEXEL(targets, at.x * TARGETS_TEXELS + at.y, TARGETS_WIDTH, TARGETS_HEIGHT);
    vec4 losses = vec4(loss(row.x, target.x), loss(row.y, target.y), loss(row.z, target.z), loss(row.w, target.w));
    y = trimmed(losses, at.y, OUT_COLS);
}

#version 300 es
// probs[r, c] = exp(x[r, c] - max(x[r])) / sum over the first cols columns of exp(x[r, i] - max(x[r]))
// x, probs [rows, STRIDE]; only the first cols columns are used. A row of equal entries, such as an all-masked row,
// becomes uniform.
#include "common/matrix.glsl"
uniform sampler2D x;
uniform int cols;
layout(location = 0) out float probs;

void main() {
    ivec2 e = output_element(STRIDE);
    float largest = at(x, e.x, 0, STRIDE);
    for (int i = 1; i < cols; i++) largest = max(largest, at(x, e.x, i, STRIDE));
    float sum = 0.0;
    for (int i = 0; i < cols; i++) sum += exp(at(x, e.x, i, STRIDE) - largest);
    probs = exp(at(x, e.x, e.y, STRIDE) - largest) / sum;
}

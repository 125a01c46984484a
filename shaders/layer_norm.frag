#version 300 es
// y[r, c] = (x[r, c] - mean(x[r])) / sqrt(var(x[r]) + EPS) * weight[c] + bias[c]
// x [rows, DIM]; weight, bias [1, DIM]. Every fragment sums its whole row: simple, and one pass.
// The mean is computed as mean(x[r] - x[r, 0]) + x[r, 0]: rows far from 0 keep their digits, constant rows give bias.
#include "common/matrix.glsl"
uniform sampler2D x;
uniform sampler2D weight;
uniform sampler2D bias;
layout(location = 0) out float y;

void main() {
    ivec2 e = output_element(DIM);
    float first = at(x, e.x, 0, DIM);
    float mean = 0.0;
    for (int i = 0; i < DIM; i++) mean += at(x, e.x, i, DIM) - first;
    mean = first + mean / float(DIM);
    float variance = 0.0;
    for (int i = 0; i < DIM; i++) {
        float d = at(x, e.x, i, DIM) - mean;
        variance += d * d;
    }
    variance /= float(DIM);
    float normal = (at(x, e.x, e.y, DIM) - mean) / sqrt(variance + EPS);
    y = normal * at(weight, 0, e.y, DIM) + at(bias, 0, e.y, DIM);
}

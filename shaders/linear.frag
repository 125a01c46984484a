#version 300 es
// y[r, o] = activation(sum over i of x[r, i] * weight[o, i] + bias[o]) + residual[r, o]
// x [rows, IN]; weight [OUT, IN]; bias [1, OUT] with BIAS; residual [rows, OUT] with RESIDUAL.
// With LAST_ROW the output is one row, computed from row (rows - 1) of x.
#include "common/matrix.glsl"
#include "common/activation.glsl"
uniform sampler2D x;
uniform sampler2D weight;
#ifdef BIAS
uniform sampler2D bias;
#endif
#ifdef RESIDUAL
uniform sampler2D residual;
#endif
#ifdef LAST_ROW
uniform int rows;
#endif
layout(location = 0) out float y;

void main() {
    ivec2 e = output_element(OUT);
#ifdef LAST_ROW
    int row = rows - 1;
#else
    int row = e.x;
#endif
    float sum = 0.0;
    for (int i = 0; i < IN; i++) sum += at(x, row, i, IN) * at(weight, e.y, i, IN);
#ifdef BIAS
    sum += at(bias, 0, e.y, OUT);
#endif
    y = activations(vec4(sum)).x;
#ifdef RESIDUAL
    y += at(residual, e.x, e.y, OUT);
#endif
}

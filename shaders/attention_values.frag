#version 300 es
// mixed[r, c] = sum over the first rows positions j of probs[r, j] * v[j, head * HEAD_DIM + c]: one head.
// probs [CONTEXT, CONTEXT]; v [rows, DIM]; mixed [rows, HEAD_DIM].
#include "common/matrix.glsl"
uniform sampler2D probs;
uniform sampler2D v;
uniform int head;
uniform int rows;
layout(location = 0) out float mixed;

void main() {
    ivec2 e = output_element(HEAD_DIM);
    float sum = 0.0;
    for (int j = 0; j < rows; j++) sum += at(probs, e.x, j, CONTEXT) * at(v, j, head * HEAD_DIM + e.y, DIM);
    mixed = sum;
}

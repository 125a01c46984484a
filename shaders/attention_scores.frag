#version 300 es
// scores[i, j] = SCALE * dot(q[i, head], k[j, head]) for j <= i, else MASKED: one head, causal.
// q, k [rows, DIM]; the head's columns begin at head * HEAD_DIM; scores [CONTEXT, CONTEXT].
// MASKED is far below any score and finite, so that a softmax over it gives an exact 0 and never NaN.
#include "common/matrix.glsl"
const float MASKED = -1e30;
uniform sampler2D q;
uniform sampler2D k;
uniform int head;
layout(location = 0) out float scores;

void main() {
    ivec2 e = output_element(CONTEXT);
    if (e.y > e.x) {
        scores = MASKED;
        return;
    }
    float sum = 0.0;
    for (int i = 0; i < HEAD_DIM; i++) {
        int c = head * HEAD_DIM + i;
        sum += at(q, e.x, c, DIM) * at(k, e.y, c, DIM);
    }
    scores = sum * SCALE;
}

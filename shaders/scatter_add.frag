#version 300 es
// The gradient of an embedding table, by blending: adds one texel of the gradients to the texel of the table where
// common/scatter_add.vert has put this point, and counts the added elements. NaN and infinities are skipped.
// grad [ids, columns]; sums, counts [vocabulary, columns].
#include "common/flat.glsl"
#include "common/gradient.glsl"
flat in int source;
layout(location = 0) out vec4 sums;
layout(location = 1) out vec4 counts;

void main() {
    gradient(source, sums, counts);
}

#version 300 es
// y = activation(gate) · up (common/limited_gate.glsl), element by element in float32, of two tensors x and up of the shape of
// y; or with PACKED of the two halves of each row of x, which has 2 · OUT_COLS columns: with GATE_FIRST the gate comes first.
#include "common/flat.glsl"
#include "common/elements.glsl"
#include "common/limited_gate.glsl"
uniform sampler2D x;
#if !PACKED
uniform sampler2D up;
#endif
layout(location = 0) out vec4 y;

void main() {
#if PACKED
    ivec2 at = output_place();
    int texel = at.x * X_TEXELS + at.y;
    vec4 first = TEXEL(x, texel, X_WIDTH, X_HEIGHT);
    vec4 second = TEXEL(x, texel + OUT_COLS / 4, X_WIDTH, X_HEIGHT);
#if OUT_COLS % 4 != 0
    second = joined(second, TEXEL(x, texel + OUT_COLS / 4 + 1, X_WIDTH, X_HEIGHT), OUT_COLS % 4);
#endif
    y = trimmed(GATE_FIRST != 0 ? gated(first, second) : gated(second, first), at.y, OUT_COLS);
#else
    ivec2 pixel = ivec2(gl_FragCoord.xy);  // equal shapes have equal layouts
    y = gated(FETCH(x, pixel, ivec2(X_WIDTH, X_HEIGHT)), FETCH(up, pixel, ivec2(UP_WIDTH, UP_HEIGHT)));
#endif
}

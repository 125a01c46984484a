#version 300 es
// y = sigmoid(x), element by element; or with DECAY 1 the logarithm of a decay, -exp(rate) · softplus(x + shift), with a
// rate and a shift for each column; or with DECAY 2 softplus(x + shift). x, y [rows, C], rate and shift [1, C].
#include "common/flat.glsl"
#include "common/softplus.glsl"
uniform sampler2D x;
#if DECAY
uniform sampler2D shift;
#endif
#if DECAY == 1
uniform sampler2D rate;
#endif
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
    vec4 found = TEXEL(x, at.x * X_TEXELS + at.y, X_WIDTH, X_HEIGHT);
#if DECAY
    found = softplus(found + TEXEL(shift, at.y, SHIFT_WIDTH, SHIFT_HEIGHT));
#if DECAY == 1
    found *= -exp(TEXEL(rate, at.y, RATE_WIDTH, RATE_HEIGHT));
#endif
#else
    found = 1.0 / (1.0 + exp(-max(found, -88.0)));
#endif
    y = trimmed(found, at.y, OUT_COLS);
}

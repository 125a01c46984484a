#version 300 es
// A causal convolution along the rows, each column by itself ("depthwise"):
//   y[r, c] = bias[c] + Σ over k of taps[k, c] · x[r - LENGTH + 1 + k, c].
// x, y [rows, C], SEQUENCE rows a sequence; before the first row of a sequence x is zero. taps [LENGTH, C], bias [1, C] with
// BIASED.
#include "common/flat.glsl"
uniform sampler2D x, taps;
#if BIASED
uniform sampler2D bias;
#endif
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
#if BIASED
    y = TEXEL(bias, at.y, BIAS_WIDTH, BIAS_HEIGHT);
#else
    y = vec4(0.0);
#endif
    for (int k = max(0, LENGTH - 1 - at.x % SEQUENCE); k < LENGTH; k++) {
        y += TEXEL(taps, k * TAPS_TEXELS + at.y, TAPS_WIDTH, TAPS_HEIGHT) *
             TEXEL(x, (at.x - LENGTH + 1 + k) * X_TEXELS + at.y, X_WIDTH, X_HEIGHT);
    }
}

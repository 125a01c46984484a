#version 300 es
// The gated results of a scan (Mamba-2), normalised: y = x / sqrt(mean over the group of x² + EPS) · gain, in groups of GROUP_TEXELS.
// x, y [rows, HEADS · VALUE_TEXELS · 4], gains [1, HEADS · VALUE_TEXELS · 4].
#include "common/block_pass.glsl"
#include "common/delta.glsl"
uniform sampler2D gains;
layout(location = 0) out vec4 y;

void main() {
    locate();
    int texel = 16 * out_block + out_lane, first = texel - texel % GROUP_TEXELS;
    y = vec4(0.0);
    if (texel < HEADS * VALUE_TEXELS) {
        float squares = 0.0;
        for (int i = 0; i < GROUP_TEXELS; i++) {
            vec4 each = given(out_slot, first + i);
            squares += dot(each, each);
        }
        vec4 gain = FETCH(gains, ivec2(texel, 0), ivec2(GAINS_WIDTH, GAINS_HEIGHT));
        y = given(out_slot, texel) * inversesqrt(squares / float(4 * GROUP_TEXELS) + float(EPS)) * gain;
    }
}

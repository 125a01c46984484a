#version 300 es
// Rows q | k | v | G | beta of a delta rule (shaders/delta_conv.frag): y = x with each head of q and k divided by
// sqrt(Σ x² + EPS), and q multiplied by SCALE.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int texel = 16 * out_block + out_lane, part = texel / X_K, inside = texel - part * X_K;
    y = given(out_slot, texel);
    if (part < 2 && inside < KEY_HEADS * KEY_TEXELS) {
        float squares = 0.0;
        for (int i = 0; i < KEY_TEXELS; i++) {
            vec4 each = given(out_slot, texel - inside % KEY_TEXELS + i);
            squares += dot(each, each);
        }
        y *= inversesqrt(squares + float(EPS));
        if (part == 0) y *= float(SCALE);
    }
}

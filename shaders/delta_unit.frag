#version 300 es
// Rows q | k | v | G | beta of a delta rule (shaders/delta_conv.frag): y = x with each head of q and k divided by
// sqrt(Σ x² + EPS), and q multiplied by SCALE.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    Place at = output_place();
    int texel = 16 * at.block + at.lane, part = texel / X_K, inside = texel - part * X_K;
    y = given(at.slot, texel);
    if (part < 2 && inside < KEY_HEADS * KEY_TEXELS) {
        float squares = 0.0;
        for (int i = 0; i < KEY_TEXELS; i++) {
            vec4 each = given(at.slot, texel - inside % KEY_TEXELS + i);
            squares += dot(each, each);
        }
        y *= inversesqrt(squares + float(EPS));
        if (part == 0) y *= float(SCALE);
    }
}

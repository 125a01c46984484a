#version 300 es
// Rows of the cache of a scan (Mamba-2), y [rows, k | G | u], from rows x of shaders/common/delta.glsl: u = beta · v.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int row = out_slot, texel = 16 * out_block + out_lane;
    y = vec4(0.0);
    if (texel < C_U) {
        y = given(row, X_K + texel + (texel < C_G ? 0 : X_G - X_K - C_G));
    } else if (texel < C_U + HEADS * VALUE_TEXELS) {
        texel -= C_U;
        y = share(row, texel / VALUE_TEXELS) * given(row, X_V + texel);
    }
}

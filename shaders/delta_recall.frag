#version 300 es
// Reads the state of a delta rule, y [rows, values]: with QUERIES the results, the state of all tokens up to the row's own
// times its query; otherwise beta · (v - state · key), with the state of the tokens before the first of the consecutive
// rows that end at this row.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    locate();
    int texel = 16 * out_block + out_lane;
    y = vec4(0.0);
#if QUERIES
    if (texel < HEADS * VALUE_TEXELS) y = recalled(out_slot, 0, texel, POSITION_OF(out_slot) + 1);
#else
    if (texel < HEADS * VALUE_TEXELS) {
        vec4 known = recalled(out_slot, X_K, texel, POSITION_OF(first_row(out_slot)));
        y = share(out_slot, texel / VALUE_TEXELS) * (given(out_slot, X_V + texel) - known);
    }
#endif
}

#version 300 es
// Reads the state of a delta rule, y [rows, values]: with QUERIES the results, the state of all tokens up to the row's own
// times its query; otherwise beta · (v - state · key), with the state of the tokens before the first of the consecutive
// rows that end at this row.
#include "common/block_pass.glsl"
#include "common/delta.glsl"
layout(location = 0) out vec4 y;

void main() {
    Place at = output_place();
    int texel = 16 * at.block + at.lane;
    y = vec4(0.0);
#if QUERIES
    if (texel < HEADS * VALUE_TEXELS) y = recalled(at.slot, 0, texel, POSITION_OF(at.slot) + 1);
#else
    if (texel < HEADS * VALUE_TEXELS) {
        vec4 known = recalled(at.slot, X_K, texel, POSITION_OF(first_row(at.slot)));
        y = share(at.slot, texel / VALUE_TEXELS) * (given(at.slot, X_V + texel) - known);
    }
#endif
}

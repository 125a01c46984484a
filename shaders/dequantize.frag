#version 300 es
// The floats y [rows, OUT_COLS] of a packed table (common/weights.glsl), bit for bit; four elements a texel
// (common/flat.glsl). A row's scale times the zeros after its end may be NaN, so those elements are set to zero.
#include "common/flat.glsl"
#include "common/weights.glsl"
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
    y = trimmed(weights_at(at.x, at.y), at.y, OUT_COLS);
}

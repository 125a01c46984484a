#version 300 es
// Every group of every row as products read it: texel 8 · group + j of row r of y is texel j of that group, of FORMAT 0
// texel `group`. The loop chooses j, so that group_weights() is only given constants where the loop is unrolled.
#include "common/flat.glsl"
#include "common/weights.glsl"
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = output_place();
    Group g = group_of(min(at.x, OUT_ROWS - 1), at.y / GROUP_TEXELS);
    for (int j = 0; j < GROUP_TEXELS; j++) {
        vec4 four = group_weights(g, j);
        if (j == at.y % GROUP_TEXELS) y = four;
    }
}

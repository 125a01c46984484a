#version 300 es
// The stream times a learned factor: y = factor · x, element by element. Row ROWS · slot + n of x and y is in slot `slot` of
// texture n, in blocks; factor is one number.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
uniform sampler2D factor;
EACH_ROW(DECLARE_TARGET)

#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) Y = FETCH(X, IN_X(from), X_SIZE) * by;

void main() {
    locate();
    ivec2 from = block_origin(out_slot, out_block, X_LAYOUT) + lane_offset(out_lane);
    float by = FETCH(factor, ivec2(0), ivec2(1)).x;
    EACH_ROW(FINISH)
}

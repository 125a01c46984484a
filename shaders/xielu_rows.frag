#version 300 es
// y = xIELU(x) (common/xielu.glsl), element by element. x, y [rows, C] in blocks; row ROWS · slot + n is in slot `slot` of texture
// n. slopes [1, 2] has the learned numbers of positive and of negative x.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/xielu.glsl"
uniform sampler2D slopes;
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_TARGET)

#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) Y = xielu(FETCH(X, from, X_SIZE), learned.x, learned.y);

void main() {
    locate();
    vec4 learned = FETCH(slopes, ivec2(0), ivec2(SLOPES_WIDTH, SLOPES_HEIGHT));
    ivec2 from = block_origin(out_slot, out_block, X_LAYOUT) + lane_offset(out_lane);
    EACH_ROW(FINISH)
}

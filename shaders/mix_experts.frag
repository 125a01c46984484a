#version 300 es
// The end of a layer with experts: y[r] = sum over i < USED of weight[r, i] · x[r, i] + bias + residual[r], the weights from the
// texels that shaders/route.frag wrote. The bias, if there is one, has its numbers in a row. Without RESIDUAL blending adds to y. x has USED parts of OUT_BLOCKS blocks in slot
// r, or with PLACED x[r, i] is in slot p / ROWS of texture p % ROWS, p as shaders/place_experts.frag wrote it;
// row ROWS · slot + n of residual and y is in slot `slot` of texture n. Rows from number `held` on are padding: zero.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/choices.glsl"
#if PLACED
EACH_ROW(DECLARE_INPUT)
#define PICK(n, X, R, Y, V, A, B, C, D, E, F, S) if (target == n) part = FETCH(X, from, X_SIZE);
#else
uniform sampler2D x;
#endif
#ifdef BIAS_WIDTH
uniform sampler2D bias;
#endif
uniform int held;
#ifdef RESIDUAL
EACH_ROW(DECLARE_SECOND)
#endif
EACH_ROW(DECLARE_TARGET)

vec4 mixed(int row) {
    vec4 sum = vec4(0.0);
    if (row >= held) return sum;
#ifdef BIAS_WIDTH
    int column = 16 * out_block + out_lane;  // of padding there is none
    if (column < BIAS_WIDTH) sum = FETCH(bias, ivec2(column, 0), ivec2(BIAS_WIDTH, 1));
#endif
    for (int i = 0; i < USED; i++) {
        vec4 chosen = choice_at(row, i);
#if PLACED
        int index = int(chosen.z + 0.5), target = index % ROWS;
        ivec2 from = block_origin(index / ROWS, out_block, X_LAYOUT) + lane_offset(out_lane);
        vec4 part = vec4(0.0);
        EACH_ROW(PICK)
#else
        ivec2 from = block_origin(row, i * OUT_BLOCKS + out_block, X_LAYOUT) + lane_offset(out_lane);
        vec4 part = FETCH(x, IN_X(from), X_SIZE);
#endif
        sum += chosen.y * part;
    }
    return sum;
}
#define MIX(n, X, R, Y, V, A, B, C, D, E, F, S) Y = mixed(ROWS * out_slot + n) AND_RESIDUAL(R);

void main() {
    locate();
    EACH_ROW(MIX)
}

#version 300 es
// The end of a layer with experts: y[r] = sum over i < USED of weight[r, i] · x[r, i] + residual[r], the weights from the texels
// that shaders/route.frag wrote. Without RESIDUAL blending adds to what y holds. x has USED parts of OUT_BLOCKS blocks in slot
// r; row ROWS · slot + n of residual and y lies in slot `slot` of texture n. Rows from number `held` on are padding: zero.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#define X_PLACES X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
#define CHOICE_PLACES CHOICE_TILES, CHOICE_PITCH, CHOICE_SLOT_STEP, CHOICE_BLOCK_STEP, CHOICE_COLUMNS
uniform sampler2D x;
uniform sampler2D choice;
uniform int held;
#ifdef RESIDUAL
EACH_ROW(DECLARE_SECOND)
#define AND_RESIDUAL(R) + FETCH(R, IN_R(OUT_TEXEL), R_SIZE)
#else
#define AND_RESIDUAL(R)
#endif
EACH_ROW(DECLARE_TARGET)

vec4 mixed(int row, Place at) {
    vec4 sum = vec4(0.0);
    if (row >= held) return sum;
    for (int i = 0; i < USED; i++) {
        float weight = FETCH(choice, (block_origin(row, i >> 4, CHOICE_PLACES) + lane_offset(i & 15)),
                             ivec2(CHOICE_WIDTH, CHOICE_HEIGHT)).y;
        ivec2 from = block_origin(row, i * OUT_BLOCKS + at.block, X_PLACES) + lane_offset(at.lane);
        sum += weight * FETCH(x, IN_X(from), ivec2(X_WIDTH, X_HEIGHT));
    }
    return sum;
}
#define MIX(n, X, R, Y, V, A, B, C, D, E, F, S) Y = mixed(ROWS * at.slot + n, at) AND_RESIDUAL(R);

void main() {
    Place at = output_place();
    EACH_ROW(MIX)
}

#version 300 es
// LayerNorm or RMSNorm of the ROWS rows of a slot: y[r] = (x[r] - mean[r]) · factor[r] · gain + bias, for models that
// normalise the stream itself. Factors, and with CENTRED means, come from shaders/row_norms.frag. gains has a row of gains and
// with BIASED a row of biases, DIM_TEXELS texels each. Row ROWS · slot + n of x and y is in slot `slot` of texture n.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#define GAINS_ROW(row) FETCH(gains, ivec2((row) / GAINS_STACK * GAINS_TEXELS + texel, (row) % GAINS_STACK), \
                             ivec2(GAINS_WIDTH, GAINS_HEIGHT))
EACH_ROW(DECLARE_INPUT)
#include "common/norms.glsl"
uniform sampler2D gains;
EACH_ROW(DECLARE_TARGET)

#if CENTRED
#define LESS_MEAN(n) - means[n / 4][n % 4]
#else
#define LESS_MEAN(n)
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    Y = inside ? (FETCH(X, from, X_SIZE) LESS_MEAN(n)) * factors[n / 4][n % 4] * gain + bias : vec4(0.0);

void main() {
    locate();
    int texel = 16 * out_block + out_lane;
    bool inside = texel < DIM_TEXELS;
    texel = min(texel, DIM_TEXELS - 1);
    ivec2 from = block_origin(out_slot, out_block, X_LAYOUT) + lane_offset(out_lane);
    vec4 factors[(ROWS + 3) / 4];
    for (int i = 0; i < (ROWS + 3) / 4; i++) factors[i] = NORM_TEXEL(i);
#if CENTRED
    vec4 means[(ROWS + 3) / 4];
    for (int i = 0; i < (ROWS + 3) / 4; i++) means[i] = NORM_TEXEL(2 + i);
#endif
    vec4 gain = GAINS_ROW(0), bias = vec4(0.0);
#if BIASED
    bias = GAINS_ROW(1);
#endif
    EACH_ROW(FINISH)
}

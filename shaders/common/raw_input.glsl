// Inputs that are raw sums of an earlier product (RAW in shaders/gemm.frag): the reader multiplies them by the norm, adds
// the bias in x_consts, and applies the activation. With X_GATED, blocks of gates alternate with the blocks that they
// multiply. The last block has the sum of the squares of the product's X_DIM inputs and, with X_CENTRED, their sum.
#include "common/activation.glsl"
#include "common/lines.glsl"
#if X_BIASED
uniform sampler2D x_consts;
#endif

// The bias of texel `lane` of a block of sums.
vec4 input_bias(int block, int lane) {
#if X_BIASED
    ivec2 texel = line_at(block, XC_COLUMNS, 16 * (XC_BIAS_AT + 1)) + ivec2(16 * XC_BIAS_AT + lane, 0);
    return FETCH(x_consts, texel, ivec2(XC_WIDTH, XC_HEIGHT));
#else
    return vec4(0.0);
#endif
}

vec4 whole_sum(vec4 sum, float norm, vec4 bias) {
#if X_BIASED
    return sum * norm + bias;
#else
    return sum * norm;
#endif
}

// The norm, from a texel of the last block.
float input_norm_of(vec4 gathered) {
    gathered *= 1.0 / float(X_DIM);
#if X_CENTRED
    return inversesqrt(max(gathered.x - gathered.y * gathered.y, 0.0) + float(X_EPS));
#else
    return inversesqrt(gathered.x + float(X_EPS));
#endif
}

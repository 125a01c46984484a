// The common parts of matrix products: the pairs of matrices in a batch, and the finish of a sum.
// y[b, m] = x[x batch of b, m] · weight[weight batch of b]; a batch index has three axes, the last two of sizes BATCH1 and
// BATCH2, along which x and weight step by X_BATCH and WEIGHT_BATCH (0 broadcasts).
#include "common/flat.glsl"
#include "common/activation.glsl"
#ifdef CAP
#include "common/soft_cap.glsl"
#endif

#ifdef BATCHED
int batch_step(int batch, ivec3 steps) {
    return (batch / (BATCH1 * BATCH2)) * steps.x + ((batch / BATCH2) % BATCH1) * steps.y + (batch % BATCH2) * steps.z;
}
#define X_BATCH(batch) batch_step(batch, ivec3(X_BATCH0, X_BATCH1, X_BATCH2))
#define WEIGHT_BATCH(batch) batch_step(batch, ivec3(WEIGHT_BATCH0, WEIGHT_BATCH1, WEIGHT_BATCH2))
#else
#define X_BATCH(batch) 0
#define WEIGHT_BATCH(batch) 0
#endif

#ifdef BIAS
uniform sampler2D bias;
#endif
#ifdef RESIDUAL
uniform sampler2D residual;
#endif
#ifdef CAUSAL
uniform int offset;  // the last column that row 0 of a matrix sees
const float MASKED = -1e30;
#endif

// activation(SCALE · sum + bias) + residual at (row, texel) of the output, whose matrices have M rows. With CAP it is bounded
// by common/soft_cap.glsl. With CAUSAL columns after offset + row are MASKED, and with WINDOW
// also those before the last WINDOW columns up to it.
vec4 finished(vec4 sum, ivec2 at) {
    vec4 v = sum * SCALE;
#ifdef BIAS
    v += TEXEL(bias, at.y, BIAS_WIDTH, BIAS_HEIGHT);
#endif
    v = activations(v);
#ifdef RESIDUAL
    v += TEXEL(residual, at.x * RESIDUAL_TEXELS + at.y, RESIDUAL_WIDTH, RESIDUAL_HEIGHT);
#endif
#ifdef CAP
    v = soft_capped(v, float(CAP));
#endif
#ifdef CAUSAL
    v = mix(v, vec4(MASKED), greaterThan(columns_of(at.y), ivec4(offset + at.x % M)));
#ifdef WINDOW
    v = mix(v, vec4(MASKED), lessThanEqual(columns_of(at.y), ivec4(offset + at.x % M - WINDOW)));
#endif
#endif
    v = trimmed(v, at.y, OUT_COLS);
    return v;
}

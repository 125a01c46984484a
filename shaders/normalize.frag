#version 300 es
// The rows of x [rows, COLS], or of x + residual with ADDS (common/row_values.glsl), normalised by their statistics:
//   LAYER  (x - mean) / sqrt(variance + EPS), by MOMENTS        RMS          x / sqrt(mean(x²) + EPS), by SQUARES
//   SOFTMAX  exp(x) / sum(exp(x)), by EXPONENTS                 LOG_SOFTMAX  its logarithm
// with WEIGHTED times weight + OFFSET, with BIASED plus bias, both [1, COLS]. With ADDS the second target gets the sum.
// With ROUNDED results are rounded to 8 bits (common/rounded.glsl); each fragment then reads its whole row.
#define LAYER 0
#define RMS 1
#define SOFTMAX 2
#define LOG_SOFTMAX 3
#include "common/flat.glsl"
#include "common/stats_of.glsl"
#include "common/row_values.glsl"
#ifdef ROUNDED
#include "common/rounded.glsl"
#endif
#if WEIGHTED
uniform sampler2D weight;
#endif
#if BIASED
uniform sampler2D bias;
#endif
layout(location = 0) out vec4 y;
#if ADDS
layout(location = 1) out vec4 added;
#endif

vec4 normalized(vec4 v, vec4 s) {
#if NORM == LAYER
    return (v - s.x - s.y) * inversesqrt(s.z / float(COLS) + float(EPS));
#elif NORM == RMS
    return v * inversesqrt(s.x / float(COLS) + float(EPS));
#elif NORM == SOFTMAX
    return s.y == 0.0 ? vec4(1.0 / float(COLS)) : exp(v - s.x) / s.y;
#else
    return s.y == 0.0 ? vec4(-log(float(COLS))) : v - s.x - log(s.y);
#endif
}

vec4 result_at(int row, int texel, vec4 stats) {
    vec4 found = normalized(values_at(row, texel), stats);
#if WEIGHTED
    found *= TEXEL(weight, texel, WEIGHT_WIDTH, WEIGHT_HEIGHT) + float(OFFSET);
#endif
#if BIASED
    found += TEXEL(bias, texel, BIAS_WIDTH, BIAS_HEIGHT);
#endif
    return trimmed(found, texel, COLS);
}

void main() {
    ivec2 at = output_place();
    vec4 stats = stats_of(at.x);
    y = result_at(at.x, at.y, stats);
#ifdef ROUNDED
    float largest = 0.0;
    for (int texel = 0; texel < X_TEXELS; texel++) largest = max(largest, largest_of(result_at(at.x, texel, stats)));
    y = rounded(y, largest);
#endif
#if ADDS
    added = values_at(at.x, at.y);
#endif
}

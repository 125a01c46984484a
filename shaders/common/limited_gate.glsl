// Four gates g times their values u: activation(g) · u; with GATE_LIMIT, as in gpt-oss, activation(GATE_SLOPE · g) /
// GATE_SLOPE · (u + 1), with g at most the limit and u between both limits.
#include "common/activation.glsl"

#ifdef GATE_LIMIT
// A NaN must stay, but min and max may drop it. Test its bits, since compilers may assume that no number is NaN.
vec4 bounded(vec4 x, float least) {
    vec4 found = clamp(x, vec4(least), vec4(GATE_LIMIT));
    return mix(found, x, greaterThan(floatBitsToUint(x) & uvec4(0x7fffffffu), uvec4(0x7f800000u)));
}
#endif

vec4 gated(vec4 gate, vec4 up) {
#ifdef GATE_LIMIT
    const float lowest = -3.4028234663852886e38;
    return activations(float(GATE_SLOPE) * bounded(gate, lowest)) * (1.0 / float(GATE_SLOPE)) * (bounded(up, -GATE_LIMIT) + 1.0);
#else
    return activations(gate) * up;
#endif
}

// A gate and what it multiplies, four at a time: activation(g) · u; with GATE_LIMIT, as in gpt-oss, activation(GATE_SLOPE · g) /
// GATE_SLOPE · (u + 1), with g at most the limit and u between both limits. A NaN is beyond neither and stays.
#include "common/activation.glsl"

vec4 activations(vec4 x) {
    return vec4(activation(x.x), activation(x.y), activation(x.z), activation(x.w));
}

vec4 gated(vec4 gate, vec4 up) {
#ifdef GATE_LIMIT
    const vec4 limit = vec4(GATE_LIMIT);
    gate = mix(gate, limit, greaterThan(gate, limit));
    up = mix(mix(up, limit, greaterThan(up, limit)), -limit, lessThan(up, -limit)) + 1.0;
    return activations(float(GATE_SLOPE) * gate) * (1.0 / float(GATE_SLOPE)) * up;
#else
    return activations(gate) * up;
#endif
}

// tanh: near 0 its series, good to 3e-8, since 1 - 2 / (exp(2u) + 1) would lose digits there; beyond 10 it is 1 in float32,
// where some drivers' tanh overflows. A NaN stays.
vec4 tanh_of(vec4 u) {
    vec4 size = abs(u), square = u * u;
    vec4 series = u * (1.0 + square * (-0.3333333333 + square * (0.1333333333 + square * (-0.05396825397 + square * 0.02186948854))));
    vec4 tail = 1.0 - 2.0 / (exp(2.0 * min(size, 10.0)) + 1.0);
    return mix(series, mix(tail, -tail, lessThan(u, vec4(0.0))), greaterThan(size, vec4(0.25)));
}

// Activations of the MLP, chosen by ACTIVATION: 0 none, 1 GELU in its tanh form, 2 GELU in its erf form, 3 SiLU, 4 tanh, 5 ReLU
// squared; four numbers at a time, without conditions: SwiftShader's compiler needs milliseconds for each.
// Each is 0 below the x at which float32 has no normal number for the result, and so at -Inf, where that is the limit. The
// selection drops overflowed intermediates. A NaN passes through, because x is a factor or a dividend.
#include "common/tanh.glsl"

// 0.5 x (1 + tanh(u)) is x / (1 + exp(-2u)): the same function without cancellation where tanh is near -1, and without
// tanh, which overflows to NaN on some drivers. At -10.03 exp is 1.6e38; the clamp also keeps compilers from joining -2 with
// the other factors, so that all round alike.
vec4 gelu_tanh(vec4 x) {
    vec4 u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    return mix(x / (1.0 + exp(min(-2.0 * u, 88.0))), vec4(0.0), lessThan(x, vec4(-10.03)));
}

// erfc to 1.2e-7 relative everywhere: the Chebyshev fit of Press et al., Numerical Recipes, section 6.2.
vec4 erfc_of(vec4 x) {
    vec4 z = abs(x);
    vec4 t = 1.0 / (1.0 + 0.5 * z);
    vec4 p = -0.82215223 + t * 0.17087277;
    p = 1.48851587 + t * p;
    p = -1.13520398 + t * p;
    p = 0.27886807 + t * p;
    p = -0.18628806 + t * p;
    p = 0.09678418 + t * p;
    p = 0.37409196 + t * p;
    p = 1.00002368 + t * p;
    p = -1.26551223 + t * p;
    vec4 tail = t * exp(-z * z + p);
    return mix(2.0 - tail, tail, greaterThanEqual(x, vec4(0.0)));
}

// 0.5 x (1 + erf(x / sqrt 2)), written with erfc so that large negative x keeps its digits. At -13 it is -8e-38.
vec4 gelu_erf(vec4 x) {
    return mix(0.5 * x * erfc_of(-0.7071067811865476 * x), vec4(0.0), lessThan(x, vec4(-13.0)));
}

// x / (1 + exp(-x)). At -88 exp is 1.7e38.
vec4 silu(vec4 x) {
    return mix(x / (1.0 + exp(-x)), vec4(0.0), lessThan(x, vec4(-88.0)));
}

vec4 activations(vec4 x) {
#if ACTIVATION == 5
    return mix(x * x, vec4(0.0), lessThan(x, vec4(0.0)));
#elif ACTIVATION == 4
    return tanh_of(x);
#elif ACTIVATION == 3
    return silu(x);
#elif ACTIVATION == 1
    return gelu_tanh(x);
#elif ACTIVATION == 2
    return gelu_erf(x);
#else
    return x;
#endif
}

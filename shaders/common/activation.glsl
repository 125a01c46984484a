// Activations of the MLP, chosen by ACTIVATION: 0 none, 1 GELU in its tanh form, 2 GELU in its erf form, 3 SiLU.

// 0.5 x (1 + tanh(u)) is x / (1 + exp(-2u)): the same function without cancellation where tanh is near -1.
// The clamp keeps exp finite; tanh itself overflows to NaN on some drivers.
float gelu_tanh(float x) {
    float u = 0.7978845608028654 * (x + 0.044715 * x * x * x);
    return x / (1.0 + exp(min(-2.0 * u, 88.0)));
}

// erfc to 1.2e-7 relative everywhere: the Chebyshev fit of Press et al., Numerical Recipes, section 6.2.
float erfc_of(float x) {
    float z = abs(x);
    float t = 1.0 / (1.0 + 0.5 * z);
    float p = -0.82215223 + t * 0.17087277;
    p = 1.48851587 + t * p;
    p = -1.13520398 + t * p;
    p = 0.27886807 + t * p;
    p = -0.18628806 + t * p;
    p = 0.09678418 + t * p;
    p = 0.37409196 + t * p;
    p = 1.00002368 + t * p;
    p = -1.26551223 + t * p;
    float tail = t * exp(-z * z + p);
    return x >= 0.0 ? tail : 2.0 - tail;
}

// 0.5 x (1 + erf(x / sqrt 2)), written with erfc so that large negative x keeps its digits.
float gelu_erf(float x) {
    return 0.5 * x * erfc_of(-0.7071067811865476 * x);
}

// x / (1 + exp(-x)); below -88 exp would overflow, and the result is 0 to 37 digits.
float silu(float x) {
    return x < -88.0 ? 0.0 : x / (1.0 + exp(-x));
}

float activation(float x) {
#if ACTIVATION == 3
    return silu(x);
#elif ACTIVATION == 1
    return gelu_tanh(x);
#elif ACTIVATION == 2
    return gelu_erf(x);
#else
    return x;
#endif
}

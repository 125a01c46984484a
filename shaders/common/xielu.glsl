// xIELU (Huang and Schlag 2024) with two learned numbers, whose softplus is the slope above 0 and, plus 0.5, below it. Near 0
// exp(x) - 1 - x is its series, good to 1e-8, since the difference would lose digits there.
float softplus(float x) {
    return max(x, 0.0) + log(1.0 + exp(-abs(x)));
}

vec4 xielu(vec4 x, float positive, float negative) {
    vec4 least = min(x, vec4(0.0)), square = 0.5 * least * least;
    vec4 series = square * (1.0 + least * (1.0 / 3.0 + least * (1.0 / 12.0 + least * (1.0 / 60.0 + least * (1.0 / 360.0 + least / 2520.0)))));
    vec4 bent = mix(series, exp(least) - 1.0 - least, lessThan(least, vec4(-0.25)));
    vec4 below = (0.5 + softplus(negative)) * bent, above = softplus(positive) * x * x;
    return mix(below, above, greaterThan(x, vec4(0.0))) + 0.5 * x;
}

// log(1 + exp(x)), which equals x in float32 from 20 on.
vec4 softplus(vec4 x) {
    return mix(log(1.0 + exp(min(x, 20.0))), x, greaterThan(x, vec4(20.0)));
}

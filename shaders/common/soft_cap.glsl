// cap · tanh(x / cap), which bounds x smoothly. A NaN stays.
#include "common/tanh.glsl"

vec4 soft_capped(vec4 x, float cap) {
    vec4 u = x / cap;
    return cap * vec4(tanh_of(u.x), tanh_of(u.y), tanh_of(u.z), tanh_of(u.w));
}

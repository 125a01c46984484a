#version 300 es
// Results of GLSL that models depend on, to compare with recorded numbers (shaders/self_test.json): the texel in column n
// has the four results of test n, and that of the second target the same in reverse. x and words hold the numbers that the
// tests compute with, so that no compiler computes them first. `word` is 0x9e3779b9, a number that needs all 32 bits, and
// `number` is 0.1.
#include "common/blocks.glsl"
uniform sampler2D x;
uniform usampler2D words;
uniform uint word;
uniform float number;
layout(location = 0) out vec4 y;
layout(location = 1) out vec4 reversed;

vec4 given(int texel) {
    return texelFetch(x, ivec2(texel, 0), 0);
}

vec4 bytes(uint bits) {
    return vec4((uvec4(bits) >> uvec4(24u, 16u, 8u, 0u)) & 255u);
}

vec4 product() {
    vec4 sum = vec4(0.0);
    for (int i = 0; i < 16; i++) sum += given(i) * given(15 - i);
    return vec4(sum.x, sum.y, sum.z, sum.w);
}

vec4 softmax(vec4 v) {
    vec4 powers = exp(v - max(max(v.x, v.y), max(v.z, v.w)));
    return powers / dot(powers, vec4(1.0));
}

// Whether a number is finite (0), infinite (1) or NaN (2), by its bits.
float kind_of(float v) {
    uint size = floatBitsToUint(v) & 0x7fffffffu;
    return size < 0x7f800000u ? 0.0 : size == 0x7f800000u ? 1.0 : 2.0;
}

vec4 of_infinity(float huge, float zero) {
    float infinity = huge * huge;
    return vec4(kind_of(huge), kind_of(infinity), kind_of(infinity * zero), exp(-infinity));
}

void main() {
    vec4 a = given(0), b = given(1), c = given(2);
    uvec4 w = texelFetch(words, ivec2(0, 0), 0);
    int test = int(gl_FragCoord.x), size = int(c.x);
    uint bits = uint(size);
    if (test == 0) y = vec4(a.x + b.x, a.y * b.y, a.z / b.z, a.w * b.w + c.w);
    else if (test == 1) y = bytes(word);
    else if (test == 2) y = bytes(floatBitsToUint(number));
    else if (test == 3) y = bytes(w.x);
    else if (test == 4) y = bytes(w.x * 0x85ebca6bu);
    else if (test == 5) y = vec4((w.x >> 13u) & 0x7ffu, (w.x << 7u) >> 20u, (bits << 20u) >> 24u, int(w.x) >> 24u);
    else if (test == 6) y = vec4(-size * 70000 / 7, (-size) >> 2u, (-size | 5) + 3, -size / 7);
    else if (test == 7) y = bytes(floatBitsToUint(a.z));
    else if (test == 8) y = vec4(uintBitsToFloat((bits << 20u) | 0x3f000000u), unpackHalf2x16((bits << 20u) | 0x37ffu), a.w);
    else if (test == 9) y = exp(c.zyyw * vec4(20.0, 1.0, -1.0, 0.0) + vec4(0.0, 0.0, 0.0, -9.0));
    else if (test == 10) y = log(abs(vec4(a.x, b.x, c.x, 1e-30 * c.x)));
    else if (test == 11) y = vec4(sqrt(c.x), sqrt(abs(a.x) * 1e-20) * 1e10, sqrt(c.y - c.y), inversesqrt(c.x));
    else if (test == 12) y = product();
    else if (test == 13) y = softmax(a);
    else if (test == 14) y = of_infinity(uintBitsToFloat(w.y), uintBitsToFloat(w.z));
    else y = a;
    reversed = y.wzyx;
}

#version 300 es
// Results of GLSL that models depend on, to compare with recorded numbers (glinfer/gl/self_test.py): the texel in column n
// has the four results of test n. x holds the numbers that the tests compute with, so that no compiler computes them first.
// `word` is 0x9e3779b9, a number that needs all 32 bits.
#include "common/blocks.glsl"
uniform sampler2D x;
uniform uint word;
layout(location = 0) out vec4 y;

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

void main() {
    vec4 a = given(0), b = given(1), c = given(2);
    int test = int(gl_FragCoord.x), size = int(c.x);
    uint bits = uint(size);
    if (test == 0) y = vec4(a.x + b.x, a.y * b.y, a.z / b.z, a.w * b.w + c.w);
    else if (test == 1) y = bytes(word);
    else if (test == 2) y = bytes(word * 0x85ebca6bu);
    else if (test == 3) y = vec4((word >> 13u) & 0x7ffu, (word << 7u) >> 20u, (bits << 20u) >> 24u, int(word) >> 24u);
    else if (test == 4) y = vec4(-size * 70000 / 7, (-size) >> 2u, (-size | 5) + 3, -size / 7);
    else if (test == 5) y = bytes(floatBitsToUint(a.z));
    else if (test == 6) y = vec4(uintBitsToFloat((bits << 20u) | 0x3f000000u), unpackHalf2x16((bits << 20u) | 0x37ffu), a.w);
    else if (test == 7) y = exp(c.zyyw * vec4(20.0, 1.0, -1.0, 0.0) + vec4(0.0, 0.0, 0.0, -9.0));
    else if (test == 8) y = log(abs(vec4(a.x, b.x, c.x, 1e-30 * c.x)));
    else if (test == 9) y = vec4(sqrt(c.x), sqrt(abs(a.x) * 1e-20) * 1e10, sqrt(c.y - c.y), inversesqrt(c.x));
    else if (test == 10) y = product();
    else if (test == 11) y = softmax(a);
    else y = a;
}

#version 300 es
// Measures multiply-adds: 8 · ROUNDS of them on three independent vectors of four numbers, which is 96 · ROUNDS a
// fragment, without reading a texture. llvmpipe's 16 registers on x86 hold no more than three
// vectors.
precision highp float;
precision highp int;
uniform float factor;
uniform float addend;
layout(location = 0) out vec4 y;

void main() {
    vec4 a = vec4(gl_FragCoord.xy, 1.0, 2.0), b = a + 1.0, c = a + 2.0;
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 8; i++) {
            a = a * factor + addend;
            b = b * factor + addend;
            c = c * factor + addend;
        }
    }
    y = (a + b) + c;
}

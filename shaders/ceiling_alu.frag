#version 300 es
// How fast fragments multiply and add: three independent vectors of four numbers, each times one and plus another,
// 8 · ROUNDS times over; 96 · ROUNDS multiply-adds a fragment. No texture is read. More vectors than three, and the 16
// registers that llvmpipe has on x86 would no longer hold them.
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

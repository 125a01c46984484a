#version 300 es
// Writes single texels of a table: common/write_texels.vert places a point on each and reads its four numbers.
precision highp float;
precision highp int;
flat in vec4 numbers;
layout(location = 0) out vec4 y;

void main() {
    y = numbers;
}

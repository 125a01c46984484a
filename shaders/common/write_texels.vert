#version 300 es
// Moves point p to the texel of the target that row p of the table `texels` names: two texels a row, its number, and the
// bits of the four floats to write.
precision highp float;
precision highp int;
precision highp usampler2D;
uniform usampler2D texels;
flat out vec4 numbers;

void main() {
    uint target = texelFetch(texels, ivec2(0, gl_VertexID), 0).x, width = uint(OUT_WIDTH);
    vec2 centre = vec2(target % width, target / width) + 0.5;
    numbers = uintBitsToFloat(texelFetch(texels, ivec2(1, gl_VertexID), 0));
    gl_PointSize = 1.0;
    gl_Position = vec4(centre / vec2(OUT_WIDTH, OUT_HEIGHT) * 2.0 - 1.0, 0.0, 1.0);
}

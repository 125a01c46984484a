#version 300 es
// Puts one point on each texel of the caches that rows of heads go to: row r of head g belongs into row
// g * SLOTS + position + r. Rows from `used` on, and those that have no slot, go outside of what is drawn.
precision highp float;
precision highp int;
uniform int position, used;
flat out ivec3 source;  // row and head, and texel of the head

void main() {
    int texel = gl_VertexID % OUT_TEXELS, number = gl_VertexID / OUT_TEXELS;
    int row = number % ROWS, head = number / ROWS;
    source = ivec3(row, head, texel);
    gl_PointSize = 1.0;
    gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
    if (row < used && position + row < SLOTS) {
        int target = (head * SLOTS + position + row) * OUT_TEXELS + texel;
        vec2 centre = vec2(target % OUT_WIDTH, target / OUT_WIDTH) + 0.5;
        gl_Position = vec4(centre / vec2(OUT_WIDTH, OUT_HEIGHT) * 2.0 - 1.0, 0.0, 1.0);
    }
}

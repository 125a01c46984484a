#version 300 es
// Moves a point for each texel of gradients to its texel of a table: point p is texel p of the gradients [ids,
// columns], and its id names the row of the table. Ids are integers [rows, IDS_COLS].
// Points with invalid ids go outside the viewport.
precision highp float;
precision highp int;
precision highp isampler2D;
uniform isampler2D ids;
flat out int source;  // texel of the gradients

void main() {
    int number = gl_VertexID / OUT_TEXELS, column = number % IDS_COLS;
    int texel = number / IDS_COLS * IDS_TEXELS + column / 4;
    int id = texelFetch(ids, ivec2(texel % IDS_WIDTH, texel / IDS_WIDTH), 0)[column % 4];
    source = gl_VertexID;
    gl_PointSize = 1.0;
    gl_Position = vec4(2.0, 2.0, 2.0, 1.0);
    if (id >= 0 && id < OUT_ROWS) {
        int target = id * OUT_TEXELS + gl_VertexID % OUT_TEXELS;
        vec2 centre = vec2(target % OUT_WIDTH, target / OUT_WIDTH) + 0.5;
        gl_Position = vec4(centre / vec2(OUT_WIDTH, OUT_HEIGHT) * 2.0 - 1.0, 0.0, 1.0);
    }
}

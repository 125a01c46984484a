#version 300 es
// One triangle that covers the whole viewport, made from gl_VertexID alone: (-1,-1), (3,-1), (-1,3).
// Every pass draws it once; the viewport alone decides which texels the pass writes.
void main() {
    gl_Position = vec4(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0, 0.0, 1.0);
}

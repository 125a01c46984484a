#version 300 es
// One triangle over the whole viewport, as in triangle.vert, for each instance of the draw; fragments get their instance's
// number.
flat out int part;

void main() {
    gl_Position = vec4(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0, 0.0, 1.0);
    part = gl_InstanceID;
}

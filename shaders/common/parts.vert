#version 300 es
// One triangle that covers the whole viewport, as triangle.vert does, for each instance of the draw; which one it is
// the fragments are told.
flat out int part;

void main() {
    gl_Position = vec4(gl_VertexID == 1 ? 3.0 : -1.0, gl_VertexID == 2 ? 3.0 : -1.0, 0.0, 1.0);
    part = gl_InstanceID;
}

#version 300 es
// joined[r, c] = mixed[r, c - head * HEAD_DIM] in the head's own columns, else so_far[r, c].
// mixed [rows, HEAD_DIM]; so_far, joined [rows, DIM]. With FIRST there is no so_far yet: other columns are 0.
#include "common/matrix.glsl"
uniform sampler2D mixed;
#ifndef FIRST
uniform sampler2D so_far;
#endif
uniform int head;
layout(location = 0) out float joined;

void main() {
    ivec2 e = output_element(DIM);
    int c = e.y - head * HEAD_DIM;
    if (c >= 0 && c < HEAD_DIM) {
        joined = at(mixed, e.x, c, HEAD_DIM);
    } else {
#ifdef FIRST
        joined = 0.0;
#else
        joined = at(so_far, e.x, e.y, DIM);
#endif
    }
}

#version 300 es
// 1 where derivatives give a fragment its neighbours' values in the quad exactly, else 0. GLSL lets a renderer use one
// difference for the whole quad.
precision highp float;
precision highp int;
#include "common/quad.glsl"
layout(location = 0) out float y;

float value(ivec2 p) {
    return float(3 * p.x * p.x + 7 * p.y * p.y + 100 * p.x * p.y);
}

void main() {
    ivec2 p = ivec2(gl_FragCoord.xy);
    int lane = (p.x & 1) + 2 * (p.y & 1);
    vec4 own = vec4(value(p));
    bool same = across(own, lane).x == value(ivec2(p.x ^ 1, p.y)) && along(own, lane).x == value(ivec2(p.x, p.y ^ 1));
    y = same ? 1.0 : 0.0;
}

#version 300 es
// Heads of keys and values for caches: the texel that common/append_heads.vert has put this point on. Keys are the heads
// of x from FIRST on, turned as common/heads.glsl says; values are the HEADS heads behind them, as they are.
#include "common/heads.glsl"
flat in ivec3 source;  // row and head, and texel of the head
uniform int position;
layout(location = 0) out vec4 keys;
layout(location = 1) out vec4 values;

void main() {
    keys = turned_texel(source.x, FIRST + source.y, source.z, position + source.x);
    values = plain_texel(source.x, FIRST + HEADS + source.y, source.z);
}

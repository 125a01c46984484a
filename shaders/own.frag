#version 300 es
// A caller's pass (glinfer.Device.draw): "own" is its source, whose main writes four elements of a row to OWN_OUTPUT.
// The padding after the last column is set to zero, as every kernel expects.
#include "common/flat.glsl"
#define main own_main
#include "own"
#undef main

void main() {
    own_main();
    OWN_OUTPUT = trimmed(OWN_OUTPUT, output_place().y, OUT_COLS);
}

// Rotary positions of four elements of a head, two adjacent pairs: (a, b) becomes (a cos - b sin, a sin + b cos). The
// table rope has a row for each position, with as many floats as a padded head: cos and sin of each pair.
// Of the texels of a row, the first KEY_TEXELS are keys, and those from QUERY_AT on queries; others stay. With QUERY_TURNS
// queries have their own cosines and sines in the row of the table, from that texel on. Padding rows of a prompt near the
// end of the context may have positions after the table; they read its last row.
uniform sampler2D rope;
#ifndef QUERY_TURNS
#define QUERY_TURNS 0
#endif

vec4 rotated(vec4 y, int texel, int position) {
    bool key = texel < KEY_TEXELS, query = texel >= QUERY_AT;
    int t = (key ? texel : texel - QUERY_AT) % HEAD_TEXELS;
    int column = max(t, 0) + (query ? QUERY_TURNS : 0);
    int row = min(position, ROPE_WIDTH / ROPE_TEXELS * ROPE_STACK - 1);
    vec4 angles = FETCH(rope, ivec2((row / ROPE_STACK) * ROPE_TEXELS + column, row % ROPE_STACK), ivec2(ROPE_WIDTH, ROPE_HEIGHT));
    vec4 moved = vec4(y.x * angles.x - y.y * angles.y, y.x * angles.y + y.y * angles.x,
                      y.z * angles.z - y.w * angles.w, y.z * angles.w + y.w * angles.z);
    return key || query ? moved : y;
}

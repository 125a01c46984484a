#version 300 es
// The first pass of top-k: sorts each chunk of 16 elements of a row, largest first, ties by column, NaN first.
// x [ROWS, COLS]. Chunk c of row r becomes list c * ROWS + r, of which the first LIST_TEXELS texels are written: keys,
// which are integers in the order of the floats, and columns. Elements after the row's end have key and column 0; no float
// has that key. The index of an element is the number of elements that precede it.
#include "common/flat.glsl"
uniform sampler2D x;
layout(location = 0) out uvec4 sorted_columns;
layout(location = 1) out uvec4 sorted_keys;  // without a target in the last pass of the sort

// An integer in the order of floats; -0 is 0, and NaN is the largest.
uint key_of(float value) {
    uint bits = floatBitsToUint(value);
    // LLVM 19 turns (bits & 0x7fffffffu) == 0u into a float comparison, where llvmpipe treats subnormal numbers as 0.
    if (bits == 0x80000000u) bits = 0u;
    uint key = bits ^ ((bits >> 31u) == 0u ? 0x80000000u : 0xffffffffu);
    return (bits & 0x7fffffffu) > 0x7f800000u ? 0xffffffffu : key;
}

uvec4 keys_at(int row, int texel) {
    vec4 v = TEXEL(x, row * X_TEXELS + min(texel, X_TEXELS - 1), X_WIDTH, X_HEIGHT);
    uvec4 keys = uvec4(key_of(v.x), key_of(v.y), key_of(v.z), key_of(v.w));
    return keys * uvec4(lessThan(columns_of(texel), ivec4(COLS)));
}

// Counts the elements that precede each of four elements, and of four later ones. An index starts at the number of later
// elements, as if all of them preceded it.
void compare(uvec4 sooner, uvec4 later, inout uvec4 sooner_at, inout uvec4 later_at) {
    uvec4 first = uvec4(greaterThanEqual(sooner, later));
    sooner_at -= first;
    later_at += first;
    first = uvec4(greaterThanEqual(sooner, later.yzwx));
    sooner_at -= first;
    later_at.yzwx += first;
    first = uvec4(greaterThanEqual(sooner, later.zwxy));
    sooner_at -= first;
    later_at.zwxy += first;
    first = uvec4(greaterThanEqual(sooner, later.wxyz));
    sooner_at -= first;
    later_at.wxyz += first;
}

// Counts the elements that precede each among four elements.
void compare_own(uvec4 keys, inout uvec4 at) {
    uvec3 next = uvec3(greaterThanEqual(keys.xyz, keys.yzw));
    at.xyz -= next;
    at.yzw += next;
    uvec2 second = uvec2(greaterThanEqual(keys.xy, keys.zw));
    at.xy -= second;
    at.zw += second;
    uint third = uint(keys.x >= keys.w);
    at.x -= third;
    at.w += third;
}

// Writes an element if its index belongs to this fragment.
void put(uint key, uint column, uint at, uvec4 indices) {
    uvec4 here = 0u - uvec4(equal(uvec4(at), indices));
    sorted_keys |= here & key;
    sorted_columns |= here & column;
}

void put_four(uvec4 keys, uint column, uvec4 at, uvec4 indices) {
    put(keys.x, column, at.x, indices);
    put(keys.y, column + 1u, at.y, indices);
    put(keys.z, column + 2u, at.z, indices);
    put(keys.w, column + 3u, at.w, indices);
}

void main() {
    int texel = output_place().x;  // over all lists, whose matrix has one texel a row
    int list = texel / LIST_TEXELS;
    uvec4 indices = uvec4(columns_of(texel % LIST_TEXELS));
    int row = list % ROWS, start = 4 * (list / ROWS);
    uvec4 a = keys_at(row, start), b = keys_at(row, start + 1);
    uvec4 c = keys_at(row, start + 2), d = keys_at(row, start + 3);
    uvec4 a_at = uvec4(15, 14, 13, 12), b_at = a_at - 4u, c_at = a_at - 8u, d_at = a_at - 12u;
    compare_own(a, a_at);
    compare_own(b, b_at);
    compare_own(c, c_at);
    compare_own(d, d_at);
    compare(a, b, a_at, b_at);
    compare(a, c, a_at, c_at);
    compare(a, d, a_at, d_at);
    compare(b, c, b_at, c_at);
    compare(b, d, b_at, d_at);
    compare(c, d, c_at, d_at);
    sorted_keys = sorted_columns = uvec4(0);
    put_four(a, 0u, a_at, indices);
    put_four(b, 4u, b_at, indices);
    put_four(c, 8u, c_at, indices);
    put_four(d, 12u, d_at, indices);
    sorted_columns = (sorted_columns + uint(4 * start)) * uvec4(notEqual(sorted_keys, uvec4(0)));
}

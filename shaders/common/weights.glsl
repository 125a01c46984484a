// Rows of weights in any format: a table [rows, inputs] of floats (FORMAT 0), or the words that glinfer/quant/ggml.py makes
// from blocks; quant/formats.py numbers the formats. Words of GGML's blocks are sorted into groups (glinfer/quant/groups.py):
// the low bits of a row, then from texel HIGH_AT on the bits above, from SCALES_AT on the scales, from SHARED_AT on the half
// floats of blocks. Other rows have their numbers, then from SCALES_AT on a scale.
// A row is read in groups of GROUP_TEXELS texels of four weights: group_of() fetches a group, group_weights() gives its
// texel j, without branches where j is a constant. All weights after the end of a row are zero.
//
// The weights are GGML's, bit for bit. A scale is a half float of 11 significant bits, and the integers that multiply it
// have together at most 3 (Q4_0), 4 (Q4_1, Q5_0), 5 (Q5_1), 6 (Q2_K), 7 (Q8_0, Q3_K), 10 (Q4_K), 11 (Q5_K) or 12 bits
// (Q6_K: 7 and 5), so their products are exact in a float's 24 bits. Only the sum with a minimum, which is such a
// product too, is rounded, once, whether or not it is fused with the product. A row's scale is a float, and its single
// product rounds once. Values of codes have at most 7 bits, and their factors 6, so these products are exact.
// OpenGL may flush subnormal floats to zero; only scales of rows and of MXFP4 can be subnormal.
#include "common/flat.glsl"

#define BF16 1
#define Q8_ROW 12
#define Q16_ROW 13

#if FORMAT == 0
#define WEIGHT_SAMPLER sampler2D
#else
#define WEIGHT_SAMPLER usampler2D
#endif
uniform highp WEIGHT_SAMPLER weight;
#define WEIGHT_TEXEL(row, texel) TEXEL(weight, (row) * WEIGHT_TEXELS + (texel), WEIGHT_WIDTH, WEIGHT_HEIGHT)

#if FORMAT == 0
const int GROUP_TEXELS = 1;
#define Group vec4

vec4 group_of(int row, int group) {
    return WEIGHT_TEXEL(row, group);
}

vec4 group_weights(vec4 g, int j) {
    return g;
}

vec4 weights_at(int row, int texel) {
    return WEIGHT_TEXEL(row, texel);
}
#else
const int GROUP_TEXELS = 8;

#if FORMAT == BF16 || FORMAT == Q8_ROW || FORMAT == Q16_ROW
#define FORM_LOW 8
#define FORM_SCALES -1
#define FORM_TABLE 0
#endif
#include "common/group_form.glsl"

#if FORMAT == BF16 || FORMAT == Q8_ROW || FORMAT == Q16_ROW
// Texel `texel` of the row's numbers, which may end inside a group.
uvec4 number_texel(int row, int texel) {
#if FORMAT == Q8_ROW && SCALES_AT % 2 == 0 || SCALES_AT % 4 == 0
    return WEIGHT_TEXEL(row, texel);
#else
    uvec4 words = WEIGHT_TEXEL(row, min(texel, SCALES_AT - 1));
    return texel < SCALES_AT ? words : uvec4(0u);
#endif
}
#endif

#if FORMAT == BF16 || FORMAT == Q16_ROW
// Four texels of eight weights, two a word, and the bits of the scale. Groups are arrays, since Adreno GPUs lose the high
// bits of integers in structs.
#define Group uvec4[5]

Group group_parts(int row, int group, ivec4 parts) {
#if FORMAT == Q16_ROW
    uvec4 scale = WEIGHT_TEXEL(row, SCALES_AT);
#else
    uvec4 scale = uvec4(0u);
#endif
    return Group(number_texel(row, 4 * group + parts.x), number_texel(row, 4 * group + parts.y),
                 number_texel(row, 4 * group + parts.z), number_texel(row, 4 * group + parts.w), scale);
}

Group group_of(int row, int group) {
    return group_parts(row, group, ivec4(0, 1, 2, 3));
}

vec4 group_weights(Group g, int j) {
    uvec4 words = j < 4 ? (j < 2 ? g[0] : g[1]) : (j < 6 ? g[2] : g[3]);
    uvec2 pair = (j & 1) == 0 ? words.xy : words.zw;
#if FORMAT == BF16
    return uintBitsToFloat(uvec4(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
#elif MANTISSA
    pair ^= 0x80008000u;
    return FLOATS(uvec4(pair.x & 0xffffu, pair.x >> 16u, pair.y & 0xffffu, pair.y >> 16u), 32768) * uintBitsToFloat(g[4].x);
#else
    return vec4(ivec4(pair.x << 16u, pair.x, pair.y << 16u, pair.y) >> 16) * uintBitsToFloat(g[4].x);
#endif
}

vec4 weights_at(int row, int texel) {
    return group_weights(group_parts(row, texel >> 3, ivec4((texel >> 1) & 3)), texel & 7);
}
#else
// Two halves of 16 numbers, a byte each, in the order of the weights, then the bits of the scales of both halves and of the
// terms to add.
#define Group uvec4[3]

// The numbers of half 0 or 1 of a group.
uvec4 group_numbers(int row, int group, int part) {
#if FORMAT == Q8_ROW
    return number_texel(row, 2 * group + part);
#elif FORM_LOW == 8
    return WEIGHT_TEXEL(row, 2 * group + part);
#else
    uvec4 numbers = (WEIGHT_TEXEL(row, group) >> uint(4 * part)) & 0x0f0f0f0fu;
#if FORM_HIGH == 1
    uint bits = WEIGHT_TEXEL(row, HIGH_AT + (group >> 2))[group & 3] >> uint(4 * part);
    numbers |= ((uvec4(bits) >> uvec4(0u, 1u, 2u, 3u)) & 0x01010101u) << 4u;
#elif FORM_HIGH == 2
    uint bits = WEIGHT_TEXEL(row, HIGH_AT + (group >> 1))[2 * (group & 1) + part];
    numbers |= ((uvec4(bits) >> uvec4(0u, 2u, 4u, 6u)) & 0x03030303u) << 4u;
#endif
    return numbers;
#endif
}

// The scales of a group's halves, and the terms to add after scaling.
vec4 group_scales(int row, int group) {
#if FORMAT == Q8_ROW
    return vec4(vec2(uintBitsToFloat(WEIGHT_TEXEL(row, SCALES_AT).x)), 0.0, 0.0);
#else
#if SHORT_SCALES
    uint word = (WEIGHT_TEXEL(row, SCALES_AT + (group >> 3))[(group >> 1) & 3] >> uint(16 * (group & 1))) & 0xffffu;
#else
    uint word = WEIGHT_TEXEL(row, SCALES_AT + (group >> 2))[group & 3];
#endif
#if SHARED_SCALES
    Scales s = scales_of(uvec4(word), uvec4(WEIGHT_TEXEL(row, SHARED_AT + (group >> 5))[(group >> 3) & 3]));
#else
    Scales s = scales_of(uvec4(word), uvec4(0u));
#endif
#if HALVED
    return vec4(s.first.x, s.second.x, s.least_first.x, s.least_second.x);
#else
    return vec4(s.first.x, s.second.x, s.least_first.xx);
#endif
#endif
}

Group group_halves(int row, int group, int first, int second) {
    return Group(group_numbers(row, group, first), group_numbers(row, group, second), floatBitsToUint(group_scales(row, group)));
}

Group group_of(int row, int group) {
    return group_halves(row, group, 0, 1);
}

vec4 group_weights(Group g, int j) {
    vec4 scales = uintBitsToFloat(g[2]);
    vec2 scale = j < 4 ? scales.xz : scales.yw;
    return group_weights_of((j < 4 ? g[0] : g[1])[j & 3], scale.x, scale.y);
}

vec4 weights_at(int row, int texel) {
    int part = (texel >> 2) & 1;
    return group_weights(group_halves(row, texel >> 3, part, part), texel & 7);
}
#endif
#endif

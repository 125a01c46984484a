// Weights in any format: a table [rows, inputs] of floats (FORMAT 0), or the words that glinfer/quant/ggml.py makes from
// blocks; quant/formats.py numbers the formats, and SECTION0 to SECTION3 are the texels of a row where its sections begin.
// A row is read in groups of GROUP_TEXELS texels of four weights: group_of() fetches a group, group_weights() gives its
// texel j, without branches where j is a constant. All weights after the end of a row are zero.
//
// The weights are GGML's, bit for bit. A scale is a half float of 11 significant bits, and the integers that multiply it
// have together at most 3 (Q4_0), 4 (Q4_1, Q5_0), 5 (Q5_1), 6 (Q2_K), 7 (Q8_0, Q3_K), 10 (Q4_K), 11 (Q5_K) or 12 bits
// (Q6_K: 7 and 5), so their products are exact in a float's 24 bits. Only the difference from a minimum, which is such a
// product too, is rounded, once, whether or not it is fused with the product. A row's scale is a float, and its single
// product rounds once. Values of codes have at most 7 bits, and their factors 6, so these products are exact.
// OpenGL may flush subnormal floats to zero; only scales of rows and of MXFP4 can be subnormal.
#include "common/flat.glsl"

#define BF16 1
#define Q4_0 2
#define Q4_1 3
#define Q5_0 4
#define Q5_1 5
#define Q8_0 6
#define Q2_K 7
#define Q3_K 8
#define Q4_K 9
#define Q5_K 10
#define Q6_K 11
#define Q8_ROW 12
#define Q16_ROW 13
#define IQ4_NL 14
#define MXFP4 15
#define IQ4_XS 16
#define IQ3_S 17
#define IQ3_XXS 18
#define IQ2_S 19
#define IQ2_XS 20
#define IQ2_XXS 21
#define IQ1_M 22
#define IQ1_S 23
#define TQ1_0 24
#define TQ2_0 25
// Formats with four-bit codes, and those whose blocks of 256 glinfer/quant/coded.py splits.
#define HAS_TABLE (FORMAT >= IQ4_NL)
#define CODED (FORMAT >= IQ4_XS)

#if FORMAT == 0
#define WEIGHT_SAMPLER sampler2D
#else
#define WEIGHT_SAMPLER usampler2D
#endif
uniform highp WEIGHT_SAMPLER weight;
#define WEIGHT_TEXEL(row, texel) TEXEL(weight, (row) * WEIGHT_TEXELS + (texel), WEIGHT_WIDTH, WEIGHT_HEIGHT)

// With MANTISSA integers become floats as the lower bits of 2^23 + number, because GPUs run conversions at an eighth of
// the arithmetic rate.
#ifndef MANTISSA
#define MANTISSA 0
#endif
#if MANTISSA
#define FLOATS(numbers, offset) (uintBitsToFloat((numbers) | 0x4b000000u) - (8388608.0 + float(offset)))
#else
#define FLOATS(numbers, offset) vec4(ivec4(numbers) - (offset))
#endif

#if HAS_TABLE
#include "common/codes.glsl"
#endif

#if FORMAT == 0
const int GROUP_TEXELS = 1;

struct Group {
    vec4 weights;
};

Group group_of(int row, int group) {
    return Group(WEIGHT_TEXEL(row, group));
}

vec4 group_weights(Group g, int j) {
    return g.weights;
}

vec4 weights_at(int row, int texel) {
    return WEIGHT_TEXEL(row, texel);
}
#else
const int GROUP_TEXELS = 8;

#if FORMAT == Q8_ROW || FORMAT == Q16_ROW
#define QUANT_TEXELS SECTION1
#elif FORMAT == BF16
#define QUANT_TEXELS WEIGHT_TEXELS
#endif

#ifdef QUANT_TEXELS
// Texel `texel` of the row's section of weights, which may end inside a group.
uvec4 quant_texel(int row, int texel) {
#if FORMAT == Q8_ROW && QUANT_TEXELS % 2 == 0 || QUANT_TEXELS % 4 == 0
    return WEIGHT_TEXEL(row, texel);
#else
    uvec4 words = WEIGHT_TEXEL(row, min(texel, QUANT_TEXELS - 1));
    return texel < QUANT_TEXELS ? words : uvec4(0u);
#endif
}
#endif

#if FORMAT == Q8_ROW || FORMAT == Q16_ROW
float row_scale(int row) {
    return uintBitsToFloat(WEIGHT_TEXEL(row, SECTION1).x);
}
#endif

#if FORMAT == BF16 || FORMAT == Q16_ROW
// Eight weights a part, two a word, four parts.
struct Group {
    uvec4 part0, part1, part2, part3;
    float scale;
};

Group group_parts(int row, int group, ivec4 parts) {
    Group g;
    g.part0 = quant_texel(row, 4 * group + parts.x);
    g.part1 = quant_texel(row, 4 * group + parts.y);
    g.part2 = quant_texel(row, 4 * group + parts.z);
    g.part3 = quant_texel(row, 4 * group + parts.w);
#if FORMAT == Q16_ROW
    g.scale = row_scale(row);
#else
    g.scale = 1.0;
#endif
    return g;
}

Group group_of(int row, int group) {
    return group_parts(row, group, ivec4(0, 1, 2, 3));
}

vec4 group_weights(Group g, int j) {
    uvec4 words = j < 4 ? (j < 2 ? g.part0 : g.part1) : (j < 6 ? g.part2 : g.part3);
    uvec2 pair = (j & 1) == 0 ? words.xy : words.zw;
#if FORMAT == BF16
    return uintBitsToFloat(uvec4(pair.x << 16u, pair.x & 0xffff0000u, pair.y << 16u, pair.y & 0xffff0000u));
#elif MANTISSA
    pair ^= 0x80008000u;
    return FLOATS(uvec4(pair.x & 0xffffu, pair.x >> 16u, pair.y & 0xffffu, pair.y >> 16u), 32768) * g.scale;
#else
    return vec4(ivec4(pair.x << 16u, pair.x, pair.y << 16u, pair.y) >> 16) * g.scale;
#endif
}

vec4 weights_at(int row, int texel) {
    return group_weights(group_parts(row, texel >> 3u, ivec4((texel >> 1u) & 3)), texel & 7);
}
#else
// Two halves of 16 numbers, a byte each, in the order of the weights, with the scale of each half (x, y) and the minimum
// to subtract after scaling (z, w).
struct Group {
    uvec4 half0, half1;
    vec4 scales;
};

// The number to subtract before scaling.
#if FORMAT == Q4_0
#define LEAST 8
#elif FORMAT == Q5_0
#define LEAST 16
#elif FORMAT == Q3_K
#define LEAST 4
#elif FORMAT == Q6_K
#define LEAST 32
#elif FORMAT == Q8_0 || FORMAT == Q8_ROW
#define LEAST 128
#else
#define LEAST 0
#endif

// The index-th half float of a section.
float half_at(int row, int section, int index) {
    uvec4 words = WEIGHT_TEXEL(row, section + (index >> 3));
    vec2 pair = unpackHalf2x16(words[(index >> 1) & 3]);
    return (index & 1) == 0 ? pair.x : pair.y;
}

// The index-th pair of half floats of a section.
vec2 pair_at(int row, int section, int index) {
    uvec4 words = WEIGHT_TEXEL(row, section + (index >> 2));
    return unpackHalf2x16(words[index & 3]);
}

// The lower two bytes of a word.
vec2 two_bytes(uint word) {
    return vec2(ivec2(uvec2(word, word >> 8u) & 255u));
}

// Sixteen bits as the fifth bits of sixteen bytes: the product moves bit i of four to 4 + 8 · i, without collisions.
uvec4 fifth_bits(uint bits) {
    return (((uvec4(bits) >> uvec4(0, 4, 8, 12)) & 15u) * 0x02040810u) & 0x10101010u;
}

// The numbers of half 0 or 1 of a group.
uvec4 group_numbers(int row, int group, int part) {
    int block = group >> 3, g = group & 7;  // of a format with 256 weights a block
#if FORMAT == Q4_0 || FORMAT == Q4_1 || FORMAT == Q5_0 || FORMAT == Q5_1 || HAS_TABLE
    uvec4 four_bits = (WEIGHT_TEXEL(row, SECTION0 + group) >> (4 * part)) & 0x0f0f0f0fu;
#if FORMAT == Q4_0 || FORMAT == Q4_1 || HAS_TABLE
    return four_bits;
#else
    uvec4 words = WEIGHT_TEXEL(row, SECTION1 + (group >> 2));
    return four_bits | fifth_bits(words[group & 3] >> (16 * part));
#endif
#elif FORMAT == Q8_0
    return WEIGHT_TEXEL(row, SECTION0 + 2 * group + part);
#elif FORMAT == Q8_ROW
    return quant_texel(row, 2 * group + part);
#elif FORMAT == Q2_K || FORMAT == Q3_K
    uvec4 two_bits = (WEIGHT_TEXEL(row, SECTION0 + 4 * block + 2 * (g >> 2) + part) >> (2 * (g & 3))) & 0x03030303u;
#if FORMAT == Q2_K
    return two_bits;
#else
    uvec4 third = (WEIGHT_TEXEL(row, SECTION1 + 2 * block + part) >> g) & 0x01010101u;
    return two_bits | (third << 2);
#endif
#elif FORMAT == Q4_K || FORMAT == Q5_K
    uvec4 four_bits = (WEIGHT_TEXEL(row, SECTION0 + 8 * block + 2 * (g >> 1) + part) >> (4 * (g & 1))) & 0x0f0f0f0fu;
#if FORMAT == Q4_K
    return four_bits;
#else
    uvec4 fifth = (WEIGHT_TEXEL(row, SECTION1 + 2 * block + part) >> g) & 0x01010101u;
    return four_bits | (fifth << 4);
#endif
#else
    int quarter = g & 3, at = 4 * (g >> 2) + 2 * (quarter & 1) + part;
    uvec4 four_bits = (WEIGHT_TEXEL(row, SECTION0 + 8 * block + at) >> (4 * (quarter >> 1))) & 0x0f0f0f0fu;
    uvec4 high = (WEIGHT_TEXEL(row, SECTION1 + 4 * block + 2 * (g >> 2) + part) >> (2 * quarter)) & 0x03030303u;
    return four_bits | (high << 4);
#endif
}

// The scales of a group's halves, and the minima to subtract after scaling.
vec4 group_scales(int row, int group) {
    int block = group >> 3, g = group & 7;  // of a format with 256 weights a block
#if FORMAT == Q8_ROW
    return vec4(vec2(row_scale(row)), 0.0, 0.0);
#elif CODED
    // A signed byte for every half.
    uvec4 words = WEIGHT_TEXEL(row, SECTION1 + block);
    uint bytes = words[g >> 1] >> (16 * (g & 1));
    float d = float(TABLE_UNIT) * half_at(row, SECTION2, block);
    return vec4(d * vec2(ivec2(bytes << 24, bytes << 16) >> 24), 0.0, 0.0);
#elif FORMAT == MXFP4
    // A byte for every group, the exponent of a float. The two smallest are subnormal.
    uvec4 words = WEIGHT_TEXEL(row, SECTION1 + (group >> 4));
    uint exponent = (words[(group >> 2) & 3] >> (8 * (group & 3))) & 255u;
    return vec4(vec2(uintBitsToFloat(exponent < 2u ? 0x200000u << exponent : (exponent - 1u) << 23)), 0.0, 0.0);
#elif FORMAT == Q4_0 || FORMAT == Q8_0 || FORMAT == IQ4_NL
    return vec4(vec2(half_at(row, SECTION1, group)), 0.0, 0.0);
#elif FORMAT == Q5_0
    return vec4(vec2(half_at(row, SECTION2, group)), 0.0, 0.0);
#elif FORMAT == Q4_1
    vec2 pair = pair_at(row, SECTION1, group);
    return vec4(pair.xx, -pair.yy);
#elif FORMAT == Q5_1
    vec2 pair = pair_at(row, SECTION2, group);
    return vec4(pair.xx, -pair.yy);
#elif FORMAT == Q2_K
    // A byte for each half: four bits of scale, then four of minimum.
    uvec4 words = WEIGHT_TEXEL(row, SECTION1 + block);
    uint bytes = words[g >> 1] >> (16 * (g & 1));
    vec2 both = pair_at(row, SECTION2, block);
    return vec4(both.x * two_bytes(bytes & 0x0f0fu), both.y * two_bytes((bytes >> 4) & 0x0f0fu));
#elif FORMAT == Q3_K
    // Six bits for each half, minus 32: the lower four bits are nibbles of eight bytes, the upper two are in four bytes.
    uvec4 words = WEIGHT_TEXEL(row, SECTION2 + block);
    int shift = 16 * (g & 1);
    uint low = ((g & 2) == 0 ? words.x : words.y) >> (shift + 4 * (g >> 2));
    uint high = words.z >> (shift + 2 * (g >> 1));
    vec2 six_bits = two_bytes((low & 0x0f0fu) | ((high & 0x0303u) << 4));
    return vec4(unpackHalf2x16(words.w).x * (six_bits - 32.0), 0.0, 0.0);
#elif FORMAT == Q4_K || FORMAT == Q5_K
    // Six bits of scale and of minimum for each group. Groups 0 to 3 have them in four bytes each; the lower four bits of
    // the others share a byte, and their upper two bits are the upper two bits of those first bytes.
#if FORMAT == Q4_K
    uvec4 words = WEIGHT_TEXEL(row, SECTION1 + block);
#else
    uvec4 words = WEIGHT_TEXEL(row, SECTION2 + block);
#endif
    int shift = 8 * (g & 3);
    uvec2 bytes = words.yz >> shift;
    uint shared_byte = words.w >> shift;
    uvec2 last = (uvec2(shared_byte, shared_byte >> 4) & 15u) | ((bytes >> 2) & 48u);
    vec2 both = unpackHalf2x16(words.x) * vec2(ivec2(g < 4 ? bytes & 63u : last));
    return both.xxyy;
#else
    // A signed byte for every half.
    uvec4 words = WEIGHT_TEXEL(row, SECTION2 + block);
    uint bytes = words[g >> 1] >> (16 * (g & 1));
    return vec4(half_at(row, SECTION3, block) * vec2(ivec2(bytes << 24, bytes << 16) >> 24), 0.0, 0.0);
#endif
}

Group group_halves(int row, int group, int first, int second) {
    return Group(group_numbers(row, group, first), group_numbers(row, group, second), group_scales(row, group));
}

Group group_of(int row, int group) {
    return group_halves(row, group, 0, 1);
}

vec4 group_weights(Group g, int j) {
    uvec4 words = j < 4 ? g.half0 : g.half1;
    uint word = words[j & 3];
    vec2 scale = j < 4 ? g.scales.xz : g.scales.yw;
#if LEAST == 128 && !MANTISSA
    return vec4(ivec4(uvec4(word) << uvec4(24, 16, 8, 0)) >> 24) * scale.x;
#else
#if LEAST == 128
    word ^= 0x80808080u;
#endif
    uvec4 numbers = uvec4(word & 255u, (word >> 8u) & 255u, (word >> 16u) & 255u, word >> 24u);
#if HAS_TABLE
    vec4 quants = table_numbers(CODES(numbers));
#else
    vec4 quants = FLOATS(numbers, LEAST);
#endif
#if FORMAT == Q4_1 || FORMAT == Q5_1 || FORMAT == Q2_K || FORMAT == Q4_K || FORMAT == Q5_K
    return quants * scale.x - scale.y;
#else
    return quants * scale.x;
#endif
#endif
}

vec4 weights_at(int row, int texel) {
    int part = (texel >> 2u) & 1;
    return group_weights(group_halves(row, texel >> 3u, part, part), texel & 7);
}
#endif
#endif

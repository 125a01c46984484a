// Groups of 32 weights of GGML's blocks (glinfer/quant/groups.py). FORM_LOW is 4 or 8 bits a number, FORM_HIGH the words above
// the lowest four bits, FORM_SCALES the kind of a group's scales, OFFSET a number to subtract from each number. With
// FORM_TABLE numbers are four-bit codes, whose values common/codes.glsl computes.
#define SCALES_HALF 0
#define SCALES_PAIR 1
#define SCALES_SIX_BITS 2
#define SCALES_FOUR_BITS 3
#define SCALES_FLOATS 4
#define SCALES_SIGNED_BYTES 5
#define SCALES_POWER 6
#define SHARED_SCALES \
    (FORM_SCALES == SCALES_SIX_BITS || FORM_SCALES == SCALES_FOUR_BITS || FORM_SCALES == SCALES_SIGNED_BYTES)
// Whether a scale has 16 bits.
#define SHORT_SCALES (SHARED_SCALES || FORM_SCALES == SCALES_HALF || FORM_SCALES == SCALES_POWER)
#define HALVED (FORM_SCALES >= SCALES_FOUR_BITS && FORM_SCALES <= SCALES_SIGNED_BYTES)
// Whether weights have terms besides number times scale.
#define HAS_MINIMA \
    (FORM_SCALES == SCALES_PAIR || FORM_SCALES == SCALES_SIX_BITS || FORM_SCALES == SCALES_FOUR_BITS || FORM_SCALES == SCALES_FLOATS)

// With MANTISSA integers of fewer than 23 bits become floats as the lower bits of 2^23 + number, because GPUs run
// conversions at an eighth of the arithmetic rate.
#ifndef MANTISSA
#define MANTISSA 0
#endif
#if MANTISSA
#define FLOATS(numbers, offset) (uintBitsToFloat((numbers) | 0x4b000000u) - (8388608.0 + float(offset)))
#else
#define FLOATS(numbers, offset) vec4(ivec4(numbers) - (offset))
#endif
#if FORM_TABLE
#include "common/codes.glsl"
#endif

vec4 first_half(uvec4 words) {
    return vec4(unpackHalf2x16(words.x).x, unpackHalf2x16(words.y).x, unpackHalf2x16(words.z).x, unpackHalf2x16(words.w).x);
}

vec4 second_half(uvec4 words) {
    return vec4(unpackHalf2x16(words.x).y, unpackHalf2x16(words.y).y, unpackHalf2x16(words.z).y, unpackHalf2x16(words.w).y);
}

// The factors of four outputs' numbers in the first and the second half of a group, and the terms to add for each unit
// of the inputs' sum.
struct Scales {
    vec4 first, second, least_first, least_second;
};

// The scales of a group of four outputs; `halves` has the half floats of a whole block.
Scales scales_of(uvec4 words, uvec4 halves) {
#if FORM_SCALES == SCALES_HALF
    vec4 d = first_half(words);
    return Scales(d, d, -float(OFFSET) * d, vec4(0.0));
#elif FORM_SCALES == SCALES_PAIR
    vec4 d = first_half(words);
    return Scales(d, d, second_half(words), vec4(0.0));
#elif FORM_SCALES == SCALES_POWER
    vec4 d = uintBitsToFloat(words << 16u);
    return Scales(d, d, vec4(0.0), vec4(0.0));
#elif FORM_SCALES == SCALES_SIGNED_BYTES
#if FORM_TABLE
    vec4 d = float(TABLE_UNIT) * first_half(halves);
#else
    vec4 d = first_half(halves);
#endif
    vec4 one = vec4(ivec4(words << 24u) >> 24) * d, two = vec4(ivec4(words << 16u) >> 24) * d;
    return Scales(one, two, -float(OFFSET) * one, -float(OFFSET) * two);
#elif SHARED_SCALES
    vec4 d = first_half(halves), least = -second_half(halves);
#if FORM_SCALES == SCALES_SIX_BITS
    vec4 one = d * vec4(ivec4(words & 255u));
    return Scales(one, one, least * vec4(ivec4((words >> 8u) & 255u)), vec4(0.0));
#else
    return Scales(d * vec4(ivec4(words & 15u)), d * vec4(ivec4((words >> 8u) & 15u)),
                  least * vec4(ivec4((words >> 4u) & 15u)), least * vec4(ivec4((words >> 12u) & 15u)));
#endif
#else
    return Scales(vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
#endif
}

// The numbers of four weights, a byte each.
vec4 numbers_in(uint word) {
#if FORM_LOW == 8 && !MANTISSA
    return vec4(ivec4(uvec4(word) << uvec4(24u, 16u, 8u, 0u)) >> 24);
#else
#if FORM_LOW == 8
    word ^= 0x80808080u;
#endif
    uvec4 bytes = uvec4(word & 255u, (word >> 8u) & 255u, (word >> 16u) & 255u, word >> 24u);
#if FORM_TABLE
    return table_numbers(CODES(bytes));
#elif FORM_LOW == 8
    return FLOATS(bytes, 128);
#else
    return FLOATS(bytes, OFFSET);
#endif
#endif
}

// Four weights, a byte each, with the scale and the term to add of their half of the group.
vec4 group_weights_of(uint word, float scale, float least) {
#if HAS_MINIMA
    return numbers_in(word) * scale + least;
#else
    return numbers_in(word) * scale;
#endif
}

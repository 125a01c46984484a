// One round of a product over a matrix in GGML's blocks, in the layout of glinfer/gl/layouts/grouped.py: 128 inputs in four
// groups of 32 (common/group_form.glsl). A fragment takes one group for 16 outputs (QUAD), or all four groups for its own four
// outputs. Sums of integers times inputs are scaled eight inputs at a time. Numbers are not shifted in their word; the
// inputs are divided by that power of two instead.
#include "common/group_form.glsl"
#define WEIGHT_SIZE ivec2(WEIGHT_WIDTH, WEIGHT_HEIGHT)
uniform highp usampler2D weight;

#define LOW_TEXELS (FORM_LOW / 4)
#define NUMBER(bits) FLOATS(bits, 0)

// Texel n of a lane's line, and the positions of the numbers' upper bits and of the scales.
#define LINE_TEXEL(n) FETCH(weight, (line + ivec2(8 * (n), 0)), WEIGHT_SIZE)
#ifndef HIGH_TEXEL
#define HIGH_TEXEL(n) LINE_TEXEL(HIGH_AT + (n))
#endif
const int HIGH_AT = 16 * LOW_TEXELS, SCALES_AT = HIGH_AT + 4 * FORM_HIGH, SHARED_AT = SCALES_AT + 2;

#if SHORT_SCALES
// The scales of four outputs, two a word; accumulators 2p and 2p + 1 share texel p.
uvec4 short_scales(uvec4 texel, int a) {
    uvec2 pair = (a & 1) == 0 ? texel.xy : texel.zw;
    return uvec4(pair.x & 0xffffu, pair.x >> 16u, pair.y & 0xffffu, pair.y >> 16u);
}
// The block scales of the outputs of accumulator a; with QUAD the member that owns the outputs has them.
#if !SHARED_SCALES
#define SHARED_TEXEL(a) uvec4(0u)
#elif SHARED_BY_QUAD
#define SHARED_TEXEL(a) FETCH(weight, (line + ivec2(8 * SHARED_AT + (a) - member, 0)), WEIGHT_SIZE)
#else
#define SHARED_TEXEL(a) LINE_TEXEL(SHARED_AT)
#endif
#define SCALES_OF(a) scales_of(short_scales(LINE_TEXEL(SCALES_AT + ((a) >> 1)), a), SHARED_TEXEL(a))
#elif FORM_SCALES == SCALES_FLOATS
#define SCALE_FLOATS(k, a) uintBitsToFloat(LINE_TEXEL(SCALES_AT + 4 * (k) + (a)))
#define SCALES_OF(a) Scales(SCALE_FLOATS(0, a), SCALE_FLOATS(1, a), SCALE_FLOATS(2, a), SCALE_FLOATS(3, a))
#else
#define SCALES_OF(a) scales_of(LINE_TEXEL(SCALES_AT + (a)), uvec4(0u))
#endif

// Four outputs' numbers times eight inputs: `v` has inputs 4w to 4w + 3 of the group, `e` the inputs 16 further on.
#if FORM_LOW == 8
vec4 bytes_times(uvec4 words, vec4 x) {
#if MANTISSA
    words ^= 0x80808080u;
    return (NUMBER(words & 255u) - 128.0) * x.x + (NUMBER((words >> 8u) & 255u) - 128.0) * x.y +
           ((NUMBER((words >> 16u) & 255u) - 128.0) * x.z + (NUMBER(words >> 24u) - 128.0) * x.w);
#else
    return (vec4(ivec4(words << 24u) >> 24) * x.x + vec4(ivec4(words << 16u) >> 24) * x.y) +
           (vec4(ivec4(words << 8u) >> 24) * x.z + vec4(ivec4(words) >> 24) * x.w);
#endif
}
#elif FORM_TABLE
// The values of four codes, in the lower nibble of each byte.
vec4 codes_times(uvec4 words, vec4 x) {
    return (table_numbers(CODES(words & 15u)) * x.x + table_numbers(CODES((words >> 8u) & 15u)) * x.y) +
           (table_numbers(CODES((words >> 16u) & 15u)) * x.z + table_numbers(CODES((words >> 24u) & 15u)) * x.w);
}

vec4 lower_times(uvec4 words, vec4 v) {
    return codes_times(words, v);
}

vec4 upper_times(uvec4 words, vec4 e) {
    return codes_times(words >> 4u, e);
}
#else
#if FORM_HIGH == 0
// The lower nibble of each byte, and the upper one.
vec4 lower_times(uvec4 words, vec4 v) {
    uvec4 upper = words >> 16u;
    return (NUMBER(words & 15u) * v.x + NUMBER(words & 0xf00u) * (0.00390625 * v.y)) +
           (NUMBER(upper & 15u) * v.z + NUMBER(upper & 0xf00u) * (0.00390625 * v.w));
}

vec4 upper_times(uvec4 words, vec4 e) {
    uvec4 upper = words >> 16u;
    vec4 near = 0.0625 * e, far = 0.000244140625 * e;
    return (NUMBER(words & 0xf0u) * near.x + NUMBER(words & 0xf000u) * far.y) +
           (NUMBER(upper & 0xf0u) * near.z + NUMBER(upper & 0xf000u) * far.w);
}
#else
// Four numbers, one a byte.
vec4 bytes_times(uvec4 numbers, vec4 x) {
    uvec4 upper = numbers >> 16u;
    return (NUMBER(numbers & 255u) * x.x + NUMBER(numbers & 0xff00u) * (0.00390625 * x.y)) +
           (NUMBER(upper & 255u) * x.z + NUMBER(upper & 0xff00u) * (0.00390625 * x.w));
}
#endif
#endif

float sum_of(vec4 x) {
    return (x.x + x.y) + (x.z + x.w);
}

// The words of accumulator a: those of a whole group, and those of its inputs 4w to 4w + 3 and 16 further on.
#if FORM_LOW == 8
#define DECLARE_WORDS(a, w) uvec4 word = LINE_TEXEL(2 * (4 * (w) + (a))), other = LINE_TEXEL(2 * (4 * (w) + (a)) + 1);
#define FIRST_TIMES(w, V) bytes_times(word, V)
#define SECOND_TIMES(w, V) bytes_times(other, V)
#elif FORM_HIGH == 2
#define DECLARE_HIGH(a) uvec4 bits_of_first = HIGH_TEXEL(a), bits_of_second = HIGH_TEXEL(4 + (a));
#define DECLARE_WORDS(a, w) uvec4 word = LINE_TEXEL(4 * (w) + (a)); \
    uvec4 bits = bits_of_first >> uint(2 * (w)), other = bits_of_second >> uint(2 * (w));
#define FIRST_TIMES(w, V) bytes_times((word & 0x0f0f0f0fu) | ((bits & 0x03030303u) << 4u), V)
#define SECOND_TIMES(w, V) bytes_times(((word >> 4u) & 0x0f0f0f0fu) | ((other & 0x03030303u) << 4u), V)
#elif FORM_HIGH == 1
#define DECLARE_HIGH(a) uvec4 upper_bits = HIGH_TEXEL(a);
#define DECLARE_WORDS(a, w) uvec4 word = LINE_TEXEL(4 * (w) + (a)), bits = upper_bits >> uint(w);
#define FIRST_TIMES(w, V) bytes_times((word & 0x0f0f0f0fu) | ((bits & 0x01010101u) << 4u), V)
#define SECOND_TIMES(w, V) bytes_times(((word >> 4u) & 0x0f0f0f0fu) | (bits & 0x10101010u), V)
#else
#define DECLARE_WORDS(a, w) uvec4 word = LINE_TEXEL(4 * (w) + (a));
#define FIRST_TIMES(w, V) lower_times(word, V)
#define SECOND_TIMES(w, V) upper_times(word, V)
#endif
#ifndef DECLARE_HIGH
#define DECLARE_HIGH(a)
#endif
#if HALVED
#define GROUP_TIMES(w, s, V, E) (s.first * FIRST_TIMES(w, V) + s.second * SECOND_TIMES(w, E))
#define LEAST_TIMES(s, V, E) (s.least_first * (V) + s.least_second * (E))
#else
#define GROUP_TIMES(w, s, V, E) (s.first * (FIRST_TIMES(w, V) + SECOND_TIMES(w, E)))
#define LEAST_TIMES(s, V, E) (s.least_first * ((V) + (E)))
#endif
// Whether there are terms for the inputs' sum.
#define HAS_LEAST (!FORM_TABLE && (FORM_SCALES != SCALES_HALF || OFFSET != 0))

// Weights packed into 32-bit words (glinfer/quant/words.py), and the product of one 4×4 piece with four inputs.
// WEIGHTS: 0 f32, 1 f16, 2 q16, 3 q8, 4 bf16, 5 i16, 6 i8. PIECE is the number of texels of a piece: 4, 4, 2, 1, 2, 2, 1.
// Half floats are floats once they are fetched.
#define WEIGHTS_F16 1
#define WEIGHTS_Q16 2
#define WEIGHTS_Q8 3
#define WEIGHTS_BF16 4
#define WEIGHTS_I16 5
#define WEIGHTS_I8 6

#if WEIGHTS <= WEIGHTS_F16
#define PIECE 4
#define WEIGHT_SAMPLER sampler2D
#define WORDS vec4
#elif WEIGHTS == WEIGHTS_Q8 || WEIGHTS == WEIGHTS_I8
#define PIECE 1
#define WEIGHT_SAMPLER usampler2D
#define WORDS uvec4
#else
#define PIECE 2
#define WEIGHT_SAMPLER usampler2D
#define WORDS uvec4
#endif

#if WEIGHTS == WEIGHTS_BF16
// A bfloat16 is the upper half of a float.
vec4 piece(uvec4 w0, uvec4 w1, vec4 x) {
    return (uintBitsToFloat(w0 & 0xffff0000u) * x.x + uintBitsToFloat(w0 << 16) * x.y) +
           (uintBitsToFloat(w1 & 0xffff0000u) * x.z + uintBitsToFloat(w1 << 16) * x.w);
}
#elif WEIGHTS <= WEIGHTS_F16
vec4 piece(vec4 w0, vec4 w1, vec4 w2, vec4 w3, vec4 x) {
    return (w0 * x.x + w1 * x.y) + (w2 * x.z + w3 * x.w);
}
#else
// Whole numbers of 32 bits as floats, times UNIT. By conversion they come as they are; GPUs convert at an eighth of
// the speed at which they compute, so with MANTISSA their upper 23 bits are put into the mantissa of a float from 1
// to 2 instead, the sign bit flipped: 1.5 + number / 2^32.
#if MANTISSA
#define UNIT 2.3283064365386963e-10
vec4 number(uvec4 shifted) {
    return uintBitsToFloat((shifted & 0x007fffffu) ^ 0x3fc00000u) - 1.5;
}
#define FIRST(w) number((w) >> 9)
#define SECOND(w) number((w) >> 1)
#define SECOND_HALF(w) number((w) << 7)
#define THIRD(w) SECOND_HALF(w)
#define FOURTH(w) number((w) << 15)
#else
#define UNIT 1.0
#define FIRST(w) vec4(ivec4(w))
#define SECOND(w) vec4(ivec4((w) << 8))
#define SECOND_HALF(w) vec4(ivec4((w) << 16))
#define THIRD(w) SECOND_HALF(w)
#define FOURTH(w) vec4(ivec4((w) << 24))
#endif
#if WEIGHTS == WEIGHTS_I16
// Of whole numbers that a file has, what lies behind them in the word is no part.
vec4 piece(uvec4 w0, uvec4 w1, vec4 x) {
    return (FIRST(w0 & 0xffff0000u) * x.x + SECOND_HALF(w0) * x.y) +
           (FIRST(w1 & 0xffff0000u) * x.z + SECOND_HALF(w1) * x.w);
}
#elif WEIGHTS == WEIGHTS_I8
vec4 piece(uvec4 w, vec4 x) {
    return (FIRST(w & 0xff000000u) * x.x + SECOND(w & 0x00ff0000u) * x.y) +
           (THIRD(w & 0x0000ff00u) * x.z + FOURTH(w) * x.w);
}
#elif WEIGHTS == WEIGHTS_Q16
vec4 piece(uvec4 w0, uvec4 w1, vec4 x) {
    return (FIRST(w0) * x.x + SECOND_HALF(w0) * x.y) + (FIRST(w1) * x.z + SECOND_HALF(w1) * x.w);
}
#else
vec4 piece(uvec4 w, vec4 x) {
    return (FIRST(w) * x.x + SECOND(w) * x.y) + (THIRD(w) * x.z + FOURTH(w) * x.w);
}
#endif
#endif

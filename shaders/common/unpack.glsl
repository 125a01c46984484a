// Weights packed into 32-bit words (glinfer/quant/words.py), and the product of one 4×4 piece with four inputs. The
// words of a piece are called w0, w1, …, its four columns COLUMN_X to COLUMN_W.
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
#define COLUMN_X uintBitsToFloat(w0 & 0xffff0000u)
#define COLUMN_Y uintBitsToFloat(w0 << 16u)
#define COLUMN_Z uintBitsToFloat(w1 & 0xffff0000u)
#define COLUMN_W uintBitsToFloat(w1 << 16u)
#elif WEIGHTS <= WEIGHTS_F16
#define COLUMN_X w0
#define COLUMN_Y w1
#define COLUMN_Z w2
#define COLUMN_W w3
#else
// 32-bit integers as floats, times UNIT. Conversion gives their value, but GPUs run it at an eighth of the arithmetic
// rate. With MANTISSA their upper 23 bits, with the sign bit flipped, become the mantissa of a float from 1 to 2
// instead: 1.5 + number / 2^32.
#if MANTISSA
#define UNIT 2.3283064365386963e-10
vec4 float_of(uvec4 shifted) {
    return uintBitsToFloat((shifted & 0x007fffffu) ^ 0x3fc00000u) - 1.5;
}
#define FIRST(w) float_of((w) >> 9u)
#define SECOND(w) float_of((w) >> 1u)
#define SECOND_HALF(w) float_of((w) << 7u)
#define THIRD(w) SECOND_HALF(w)
#define FOURTH(w) float_of((w) << 15u)
#else
#define UNIT 1.0
#define FIRST(w) vec4(ivec4(w))
#define SECOND(w) vec4(ivec4((w) << 8u))
#define SECOND_HALF(w) vec4(ivec4((w) << 16u))
#define THIRD(w) SECOND_HALF(w)
#define FOURTH(w) vec4(ivec4((w) << 24u))
#endif
#if WEIGHTS == WEIGHTS_I16
// A file's integers must keep their value, so mask the lower numbers in the word.
#define COLUMN_X FIRST(w0 & 0xffff0000u)
#define COLUMN_Y SECOND_HALF(w0)
#define COLUMN_Z FIRST(w1 & 0xffff0000u)
#define COLUMN_W SECOND_HALF(w1)
#elif WEIGHTS == WEIGHTS_I8
#define COLUMN_X FIRST(w0 & 0xff000000u)
#define COLUMN_Y SECOND(w0 & 0x00ff0000u)
#define COLUMN_Z THIRD(w0 & 0x0000ff00u)
#define COLUMN_W FOURTH(w0)
#elif WEIGHTS == WEIGHTS_Q16
#define COLUMN_X FIRST(w0)
#define COLUMN_Y SECOND_HALF(w0)
#define COLUMN_Z FIRST(w1)
#define COLUMN_W SECOND_HALF(w1)
#else
#define COLUMN_X FIRST(w0)
#define COLUMN_Y SECOND(w0)
#define COLUMN_Z THIRD(w0)
#define COLUMN_W FOURTH(w0)
#endif
#endif

#if PIECE == 4
#define PIECE_WORDS WORDS w0, WORDS w1, WORDS w2, WORDS w3
#elif PIECE == 2
#define PIECE_WORDS WORDS w0, WORDS w1
#else
#define PIECE_WORDS WORDS w0
#endif

// Adds the product of a piece and four inputs to a sum. With FUSED, columns are added one by one, each by a fused
// multiply-add on GPUs; two pairs of columns take two products, two fused multiply-adds and two sums.
vec4 with_piece(vec4 sum, PIECE_WORDS, vec4 x) {
#if FUSED
    return (((sum + COLUMN_X * x.x) + COLUMN_Y * x.y) + COLUMN_Z * x.z) + COLUMN_W * x.w;
#else
    return sum + ((COLUMN_X * x.x + COLUMN_Y * x.y) + (COLUMN_Z * x.z + COLUMN_W * x.w));
#endif
}

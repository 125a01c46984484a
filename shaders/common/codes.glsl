// The values of four-bit codes (glinfer/quant/tables.py): a polynomial in u = code - TABLE_CENTRE of degree
// TABLE_DEGREE, rounded to the nearest integer if its degree is above 1; its error is always below 0.45.
// TABLE_C0 is an integer, so that compilers can fold it into the constants of the rounding.
#if MANTISSA
// A byte as a float, without a conversion instruction, which GPUs run at an eighth of the arithmetic rate.
#define CODES(bits) (uintBitsToFloat((bits) | 0x4b000000u) - (8388608.0 + float(TABLE_CENTRE)))
#else
#define CODES(bits) vec4(ivec4(bits) - TABLE_CENTRE)
#endif

vec4 table_numbers(vec4 u) {
#if TABLE_DEGREE == 1
    return float(TABLE_C1) * u + float(TABLE_C0);
#else
#if TABLE_DEGREE == 4
    vec4 y = (float(TABLE_C4) * u + float(TABLE_C3)) * u + float(TABLE_C2);
#else
    vec4 y = float(TABLE_C3) * u + float(TABLE_C2);
#endif
    y = (y * u + float(TABLE_C1)) * u + float(TABLE_C0);
#if MANTISSA
    return uintBitsToFloat(floatBitsToUint(y + 8388736.0) & 0x4b0000ffu) - 8388736.0;
#else
    return floor(y + 0.5);
#endif
#endif
}

// x as the nearest float16, ties to even, so that a float16 target stores it exactly; OpenGL leaves its rounding open, and
// drivers truncate. Numbers from 65520 on become infinite, those below 2^-14 multiples of 2^-24, and NaN stays.
float nearest_half(float x) {
    uint bits = floatBitsToUint(x);
    uint size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return x;
    if (size >= 0x477ff000u) return uintBitsToFloat((bits & 0x80000000u) | 0x7f800000u);
    if (size >= 0x38800000u) {
        size = (size + 0xfffu + ((size >> 13u) & 1u)) & ~0x1fffu;
    } else {
        uint cut = min(126u - (size >> 23u), 25u);  // 14 to 25 of the 24 bits are below 2^-24
        uint digits = (size & 0x7fffffu) | 0x800000u;
        uint steps = (digits + (1u << (cut - 1u)) - 1u + ((digits >> cut) & 1u)) >> cut;
        size = floatBitsToUint(float(steps) * 5.9604644775390625e-8);
    }
    return uintBitsToFloat((bits & 0x80000000u) | size);
}

// The output of a pass, rounded if OUT_HALF (the target has half floats). Numbers beyond their range become NaN, because the
// score of an infinite key could be -inf, whose weight of zero would hide it.
#ifdef OUT_HALF
vec4 stored(vec4 y) {
    vec4 halves = vec4(nearest_half(y.x), nearest_half(y.y), nearest_half(y.z), nearest_half(y.w));
    return mix(halves, vec4(uintBitsToFloat(0x7fc00000u)), greaterThanEqual(abs(y), vec4(65520.0)));
}
#else
#define stored(y) (y)
#endif

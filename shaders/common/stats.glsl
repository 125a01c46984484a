// Statistics of a row, or of a part of a row, in one texel. STAT selects them:
//   SUM        (sum of x, 0, 0, 0)
//   SQUARES    (sum of x², 0, 0, 0)
//   MOMENTS    (some x of the row, mean - that x, sum of (x - mean)², number of x): digits survive far from 0
//   LARGEST    (the largest x, its first column, 0, 0): NaN counts as the largest
//   EXPONENTS  (the largest x but at least LOWEST, sum of exp(x - it), 0, 0): the sum is 0 if every x is -Inf
#define SUM 0
#define SQUARES 1
#define MOMENTS 2
#define LARGEST 3
#define EXPONENTS 4

const float LOWEST = -3.4028234663852886e38;  // finite, since the difference of two infinities is NaN
const uint MINUS_INFINITY = 0xff800000u;

// Tests the bits, since compilers may assume that no number is NaN.
bool is_nan(float v) {
    return (floatBitsToUint(v) & 0x7fffffffu) > 0x7f800000u;
}

// Whether b is larger than a, with NaN as the largest.
bool beats(float b, float a) {
    return b > a || (is_nan(b) && !is_nan(a));
}

// Merges two parts of a row.
vec4 merged(vec4 a, vec4 b) {
#if STAT == MOMENTS
    float share = b.w / (a.w + b.w), apart = (b.x - a.x) + (b.y - a.y);
    return vec4(a.x, a.y + apart * share, a.z + b.z + apart * apart * (a.w * share), a.w + b.w);
#elif STAT == LARGEST
    return beats(b.x, a.x) || (!beats(a.x, b.x) && b.y < a.y) ? b : a;
#elif STAT == EXPONENTS
    float largest = max(a.x, b.x);
    return vec4(largest, a.y * exp(a.x - largest) + b.y * exp(b.x - largest), 0.0, 0.0);
#else
    return a + b;
#endif
}

// Elements that a pass moves: floats, or with WHOLE integers. Included after common/flat.glsl.
#ifdef WHOLE
#define SAMPLER isampler2D
#define ELEMENTS ivec4
#define PAIR ivec2
#define ELEMENT int
#else
#define SAMPLER sampler2D
#define ELEMENTS vec4
#define PAIR vec2
#define ELEMENT float
#endif

// The element in column `col` of a row, from its texel.
ELEMENT picked(ELEMENTS texel, int col) {
    PAIR pair = (col & 2) != 0 ? texel.zw : texel.xy;
    return (col & 1) != 0 ? pair.y : pair.x;
}

// Four elements from number `shift` (0 to 3) on, of `low` followed by `high`.
ELEMENTS joined(ELEMENTS low, ELEMENTS high, int shift) {
    bool far = (shift & 2) != 0, odd = (shift & 1) != 0;
    ELEMENTS even = far ? ELEMENTS(low.zw, high.xy) : low;
    return odd ? ELEMENTS(even.yzw, far ? high.z : high.x) : even;
}

// EACH_ROW(DO) serves passes that compute ROWS rows at once, row ROWS · slot + n into target n. GLSL has no arrays of
// samplers or targets with computed indices, so DO is a macro, expanded for each row n with the names of its input, second
// input, target, texel and six sums, and its number.
#define ROW(DO, n, X, R, Y, V, A, B, C, D, E, F, S) DO(n, X, R, Y, V, A, B, C, D, E, F, S)
#define ROW0(DO) ROW(DO, 0, x0, r0, y0, v0, a0, b0, c0, d0, e0, f0, s0)
#define ROW1(DO) ROW(DO, 1, x1, r1, y1, v1, a1, b1, c1, d1, e1, f1, s1)
#define ROW2(DO) ROW(DO, 2, x2, r2, y2, v2, a2, b2, c2, d2, e2, f2, s2)
#define ROW3(DO) ROW(DO, 3, x3, r3, y3, v3, a3, b3, c3, d3, e3, f3, s3)
#define ROW4(DO) ROW(DO, 4, x4, r4, y4, v4, a4, b4, c4, d4, e4, f4, s4)
#define ROW5(DO) ROW(DO, 5, x5, r5, y5, v5, a5, b5, c5, d5, e5, f5, s5)
#define ROW6(DO) ROW(DO, 6, x6, r6, y6, v6, a6, b6, c6, d6, e6, f6, s6)
#define ROW7(DO) ROW(DO, 7, x7, r7, y7, v7, a7, b7, c7, d7, e7, f7, s7)
#if ROWS == 8
#define EACH_ROW(DO) ROW0(DO) ROW1(DO) ROW2(DO) ROW3(DO) ROW4(DO) ROW5(DO) ROW6(DO) ROW7(DO)
#elif ROWS == 4
#define EACH_ROW(DO) ROW0(DO) ROW1(DO) ROW2(DO) ROW3(DO)
#elif ROWS == 2
#define EACH_ROW(DO) ROW0(DO) ROW1(DO)
#else
#define EACH_ROW(DO) ROW0(DO)
#endif

#define DECLARE_TARGET(n, X, R, Y, V, A, B, C, D, E, F, S) layout(location = n) out vec4 Y;
#define DECLARE_INPUT(n, X, R, Y, V, A, B, C, D, E, F, S) uniform sampler2D X;
#define DECLARE_SECOND(n, X, R, Y, V, A, B, C, D, E, F, S) uniform sampler2D R;
// The layout and the size of the inputs x0, x1, …, which have one layout.
#define X_LAYOUT X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS
#define X_SIZE ivec2(X_WIDTH, X_HEIGHT)
#ifdef RESIDUAL
#define AND_RESIDUAL(R) + FETCH(R, IN_R(OUT_TEXEL), R_SIZE)
#else
#define AND_RESIDUAL(R)
#endif

// Rows to reduce or normalise: x [rows, COLS], or with ADDS x + residual.
uniform sampler2D x;
#if ADDS
uniform sampler2D residual;
#endif

vec4 values_at(int row, int texel) {
    vec4 v = TEXEL(x, row * X_TEXELS + texel, X_WIDTH, X_HEIGHT);
#if ADDS
    v += TEXEL(residual, row * RESIDUAL_TEXELS + texel, RESIDUAL_WIDTH, RESIDUAL_HEIGHT);
#endif
    return v;
}

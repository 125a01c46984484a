// Rows to reduce or normalise: x [rows, COLS], or with ADDS x + residual. With CAUSAL row r is a query in a matrix of
// scores, `query_rows` queries a head, and only columns up to its position, first_query + r mod query_rows,
// count.
uniform sampler2D x;
#if ADDS
uniform sampler2D residual;
#endif
#if CAUSAL
uniform int query_rows, first_query;
#endif

vec4 values_at(int row, int texel) {
    vec4 v = TEXEL(x, row * X_TEXELS + texel, X_WIDTH, X_HEIGHT);
#if ADDS
    v += TEXEL(residual, row * RESIDUAL_TEXELS + texel, RESIDUAL_WIDTH, RESIDUAL_HEIGHT);
#endif
    return v;
}

// Number of columns of a row that count.
int columns_in(int row) {
#if CAUSAL
    return min(COLS, first_query + int(uint(row) % uint(query_rows)) + 1);
#else
    return COLS;
#endif
}

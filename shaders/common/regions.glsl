// Texels of tensors that are regions of a larger texture. The region of X begins at texel (X_AT_X, X_AT_Y) of a texture of
// X_WIDTH × X_HEIGHT texels; without these defines X is a whole texture. IN_X maps a position in X to its texel, and
// OUT_TEXEL is the position in the output that the fragment writes.
#ifdef X_AT_X
#define IN_X(texel) ((texel) + ivec2(X_AT_X, X_AT_Y))
#else
#define IN_X(texel) (texel)
#endif
#ifdef SCORES_AT_X
#define IN_SCORES(texel) ((texel) + ivec2(SCORES_AT_X, SCORES_AT_Y))
#else
#define IN_SCORES(texel) (texel)
#endif
#ifdef QUERIES_AT_X
#define IN_QUERIES(texel) ((texel) + ivec2(QUERIES_AT_X, QUERIES_AT_Y))
#else
#define IN_QUERIES(texel) (texel)
#endif
#ifdef LOGITS_AT_X
#define IN_LOGITS(texel) ((texel) + ivec2(LOGITS_AT_X, LOGITS_AT_Y))
#else
#define IN_LOGITS(texel) (texel)
#endif
#ifdef R_AT_X
#define IN_R(texel) ((texel) + ivec2(R_AT_X, R_AT_Y))
#define R_SIZE ivec2(R_WIDTH, R_HEIGHT)
#else
#define IN_R(texel) (texel)
#define R_SIZE ivec2(OUT_WIDTH, OUT_HEIGHT)  // it lies as the output does
#endif
#ifdef OUT_AT_X
#define OUT_TEXEL (ivec2(gl_FragCoord.xy) - ivec2(OUT_AT_X, OUT_AT_Y))
#else
#define OUT_TEXEL ivec2(gl_FragCoord.xy)
#endif

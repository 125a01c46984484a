// Fetches one texel; with LOOKUP_TEXTURE by texture(), which needs fewer instructions on llvmpipe than texelFetch().
#if LOOKUP_TEXTURE
#define FETCH(name, texel, size) texture(name, (vec2(texel) + 0.5) * (1.0 / vec2(size)))
#else
#define FETCH(name, texel, size) texelFetch(name, texel, 0)
#endif

#version 300 es
// Measures texel fetches: y = the sum of ROUNDS · STEPS texels of x, each texel read ROUNDS times in a draw.
// x is a texture of X_WIDTH × X_HEIGHT texels, of unsigned integers with INTEGERS 1 and of signed ones with 2; y is
// 4 · BLOCKS_WIDE fragments wide. As in shaders/gemm.frag the 8 fragments of half a 4×4 block read 8 texels side by side,
// step by step along the line; 8 · STEPS divides the line.
// Each round reads the texels that another of the HALVES half blocks read in the last round, so no near cache has them.
#include "common/blocks.glsl"
#if INTEGERS == 2
uniform isampler2D x;
#define TEXEL ivec4
#elif INTEGERS
uniform usampler2D x;
#define TEXEL uvec4
#else
uniform sampler2D x;
#define TEXEL vec4
#endif
#if LOOKUP_TEXTURE
#define FETCH(texel) texture(x, (vec2(texel) + 0.5) * (1.0 / vec2(X_WIDTH, X_HEIGHT)))
#else
#define FETCH(texel) texelFetch(x, texel, 0)
#endif
layout(location = 0) out vec4 y;

void main() {
    ivec2 at = ivec2(gl_FragCoord.xy), inner = at & 3;
    int half_block = 2 * ((at.y >> 2) * BLOCKS_WIDE + (at.x >> 2)) + (inner.y >> 1);
    int lane = 4 * (inner.x >> 1) + 2 * (inner.y & 1) + (inner.x & 1);
    TEXEL sum = TEXEL(0);
    for (int round = 0; round < ROUNDS; round++) {
        int first = 8 * STEPS * ((half_block + round * (HALVES / ROUNDS)) % HALVES);
        ivec2 texel = ivec2(first % X_WIDTH + lane, first / X_WIDTH);
        for (int step = 0; step < STEPS; step += UNROLL) {
            for (int i = 0; i < UNROLL; i++) sum += FETCH(texel + ivec2(8 * i, 0));
            texel.x += 8 * UNROLL;
        }
    }
    y = vec4(sum);
}

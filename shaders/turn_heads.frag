#version 300 es
// Divides keys and queries by the root mean square of their head, or with WHOLE of all keys or all queries of the row;
// multiplies them by gains, and with ROPE rotates them by their positions (TURNED_FIRST: before the gains); values stay. Row ROWS · slot + n of x and y,
// k | v | q in blocks, is in slot `slot` of texture n. The mean is
// over HEAD_DIM elements of a head HEAD_TEXELS texels wide, whose padding is zero. gains has a row for keys and one for
// queries, of a head or with WHOLE of all heads. The last block of a row is padding after its TEXELS, and stays zero.
// With VALUES the heads of values are divided too, but neither multiplied nor rotated.
// With LATENT only the last LATENT elements of a head of keys or values are divided, by their own root mean square, and
// queries by that of the LOW elements of x from texel LOW_AT on, unless LOW is 0.
// With ALONE there is one row, of the token at position, and y is its slot of a cache.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#ifdef ROPE
#include "common/rope.glsl"
#else
#define rotated(y, texel, position) (y)
#endif
#include "common/half.glsl"
EACH_ROW(DECLARE_INPUT)
uniform sampler2D gains;
#ifndef ROPE
#define POSITION_OF(n) 0
#elif ALONE
uniform int position;
#define POSITION_OF(n) position
#else
#include "common/row_info.glsl"
#define POSITION_OF(n) ANGLES_OF(ROWS * out_slot + n)
#endif
EACH_ROW(DECLARE_TARGET)

#define DECLARE_SUM(n, X, R, Y, V, A, B, C, D, E, F, S) float S = 0.0;
#define SQUARE(n, X, R, Y, V, A, B, C, D, E, F, S) { vec4 v = FETCH(X, IN_X(from), X_SIZE); S += dot(v, v); }
#ifdef TURNED_FIRST  // lengths stay, so only gains come after the rotation
#define NORMED(Y, n) (rotated(Y, texel, POSITION_OF(n)) * gain)
#else
#define NORMED(Y, n) rotated(Y * gain, texel, POSITION_OF(n))
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    Y = FETCH(X, IN_X(own), X_SIZE); \
    if (divided) Y *= inversesqrt(S / elements + float(EPS)); \
    if (normed) Y = NORMED(Y, n); \
    Y = stored(Y);

ivec2 position_of(int slot, int texel) {
    return texel_position(slot, texel, X_LAYOUT);
}

void main() {
    locate();
    int slot = ALONE == 1 ? 0 : out_slot;
    int texel = 16 * out_block + out_lane;
    bool key = texel < KEY_TEXELS, normed = key || (texel >= QUERY_AT && texel < TEXELS);
#ifdef LATENT
    const int stays = (HEAD_DIM - LATENT) / 4;  // texels of a head that are not divided
    bool query = normed && !key;
    int inside = texel < 2 * KEY_TEXELS || query ? (query ? texel - QUERY_AT : texel) % HEAD_TEXELS : 0;
    bool divided = query ? LOW > 0 : texel < 2 * KEY_TEXELS && inside >= stays;
    int first = query ? LOW_AT : texel - inside + stays;
    int width = query ? (LOW + 3) / 4 : HEAD_TEXELS - stays;
    float elements = float(query ? LOW : LATENT);
#else
#ifdef WHOLE
    int width = key ? KEY_TEXELS : TEXELS - QUERY_AT;
#else
    const int width = HEAD_TEXELS;
#endif
#ifdef VALUES
    bool divided = normed || texel < 2 * KEY_TEXELS;
#else
    bool divided = normed;
#endif
    float elements = float(width / HEAD_TEXELS * HEAD_DIM);
    int inside = divided ? (texel < QUERY_AT ? texel : texel - QUERY_AT) % width : 0;
    int first = texel - inside;
#endif
    EACH_ROW(DECLARE_SUM)
    if (divided) {
        for (int i = 0; i < width; i++) {
            ivec2 from = position_of(slot, first + i);
            EACH_ROW(SQUARE)
        }
    }
    vec4 gain = FETCH(gains, ivec2((key ? 0 : 1) / GAINS_STACK * GAINS_TEXELS + inside, (key ? 0 : 1) % GAINS_STACK),
                      ivec2(GAINS_WIDTH, GAINS_HEIGHT));
    ivec2 own = position_of(slot, texel);
    EACH_ROW(FINISH)
}

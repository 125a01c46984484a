// Heads out of rows of projections x [rows, heads * HEAD_DIM]: with NORMED divided by their root mean square and times
// norm [1, HEAD_DIM], with TURNS turned by the row's position (Su et al. 2021) by a table [TABLE_ROWS, HEAD_DIM] that has
// the cosine and the sine of each pair: (2i, 2i + 1) with INTERLEAVED, else (i, i + HEAD_DIM / 2).
#include "common/flat.glsl"
uniform sampler2D x;
#if TURNS
uniform sampler2D table;
#endif
#if NORMED
uniform sampler2D norm;
#endif

const int HEAD_TEXELS = (HEAD_DIM + 3) / 4;

#define X_AT(texel) TEXEL(x, texel, X_WIDTH, X_HEIGHT)

// Texel `texel` of a head of x as it is, zeros behind its end.
vec4 plain_texel(int row, int head, int texel) {
#if HEAD_DIM % 4 == 0
    return X_AT(row * X_TEXELS + head * HEAD_TEXELS + texel);
#else
    int column = head * HEAD_DIM + 4 * texel, at = row * X_TEXELS + column / 4, shift = column % 4;
    vec4 a = X_AT(at);
    if (shift > 0) {
        vec4 b = X_AT(min(at + 1, (row + 1) * X_TEXELS - 1));
        a = shift == 1 ? vec4(a.yzw, b.x) : shift == 2 ? vec4(a.zw, b.xy) : vec4(a.w, b.xyz);
    }
    return trimmed(a, texel, HEAD_DIM);
#endif
}

#if NORMED
// What the elements of a head are multiplied with.
float head_scale(int row, int head) {
    float sum = 0.0;
    for (int texel = 0; texel < HEAD_TEXELS; texel++) {
        vec4 v = plain_texel(row, head, texel);
        sum += dot(v, v);
    }
    return inversesqrt(sum / float(HEAD_DIM) + EPS);
}
#define NORMALISED(texel) (plain_texel(row, head, texel) * TEXEL(norm, texel, NORM_WIDTH, NORM_HEIGHT) * scale)
#else
#define NORMALISED(texel) plain_texel(row, head, texel)
#endif

// Texel `texel` of a head, of the row with this position.
vec4 turned_texel(int row, int head, int texel, int turn) {
#if NORMED
    float scale = head_scale(row, head);
#endif
    vec4 v = NORMALISED(texel);
#if TURNS
    int angles = clamp(turn, 0, TABLE_ROWS - 1) * TABLE_TEXELS;
#define ANGLES(texel) TEXEL(table, angles + (texel), TABLE_WIDTH, TABLE_HEIGHT)
#if INTERLEAVED
    vec4 t = ANGLES(texel);
    v = v * t.xxzz + vec4(-v.y, v.x, -v.w, v.z) * t.yyww;
#elif HEAD_DIM % 8 == 0
    bool upper = texel >= HEAD_DIM / 8;
    int pairs = upper ? texel - HEAD_DIM / 8 : texel;
    vec4 low = ANGLES(2 * pairs), high = ANGLES(2 * pairs + 1);
    vec4 other = NORMALISED(upper ? texel - HEAD_DIM / 8 : texel + HEAD_DIM / 8);
    v = v * vec4(low.xz, high.xz) + (upper ? other : -other) * vec4(low.yw, high.yw);
#else
    vec4 own = v;
    for (int lane = 0; lane < 4; lane++) {
        int element = 4 * texel + lane;
        if (element >= HEAD_DIM) break;
        bool upper = element >= HEAD_DIM / 2;
        int pair = upper ? element - HEAD_DIM / 2 : element, partner = upper ? pair : element + HEAD_DIM / 2;
        vec4 t = ANGLES(pair / 2), others = NORMALISED(partner / 4);
        vec2 angle = pair % 2 == 0 ? t.xy : t.zw;
        float other = others[partner % 4];
        v[lane] = own[lane] * angle.x + (upper ? other : -other) * angle.y;
    }
#endif
#endif
    return v;
}

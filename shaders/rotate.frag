#version 300 es
// Rotary positions (Su et al. 2021): rotates pairs of elements of each head by the angles of the row's position.
// x, y [rows, heads * HEAD_DIM], SEQUENCE rows a sequence; table [TABLE_ROWS, ROTARY]: the cosine and the sine of each
// pair, position by position. Pairs are (2i, 2i + 1) with INTERLEAVED, else (i, i + ROTARY / 2); elements of a head after
// the first ROTARY stay. Row s of a sequence has position `position` + s, or positions[s]. With WHOLE the elements of a
// texel rotate together, since their partners share a texel too.
#include "common/flat.glsl"
uniform sampler2D x, table;
#if POSITIONS
uniform isampler2D positions;
#elif TABLE_ROWS > 1
uniform int position;
#endif
layout(location = 0) out vec4 y;

#define X_AT(texel) TEXEL(x, row * X_TEXELS + (texel), X_WIDTH, X_HEIGHT)
#define TABLE_AT(texel) TEXEL(table, angles * TABLE_TEXELS + (texel), TABLE_WIDTH, TABLE_HEIGHT)

// The row of the table for a row of x.
int angle_row(int row) {
    int sequence_row = row % SEQUENCE;
#if TABLE_ROWS == 1
    return 0;
#elif POSITIONS
    ivec4 four = TEXEL(positions, sequence_row / 4, POSITIONS_WIDTH, POSITIONS_HEIGHT);
    return clamp(four[sequence_row % 4], 0, TABLE_ROWS - 1);
#else
    return clamp(position + sequence_row, 0, TABLE_ROWS - 1);
#endif
}

#if WHOLE
vec4 rotated(int row, int angles, int texel, vec4 v) {
    int own = texel % (HEAD_DIM / 4);
    if (own >= ROTARY / 4) return v;
#if INTERLEAVED
    vec4 t = TABLE_AT(own);
    return v * t.xxzz + vec4(-v.y, v.x, -v.w, v.z) * t.yyww;
#else
    bool upper = own >= ROTARY / 8;
    int pairs = upper ? own - ROTARY / 8 : own;
    vec4 low = TABLE_AT(2 * pairs), high = TABLE_AT(2 * pairs + 1);
    vec4 other = X_AT(upper ? texel - ROTARY / 8 : texel + ROTARY / 8);
    return v * vec4(low.xz, high.xz) + (upper ? other : -other) * vec4(low.yw, high.yw);
#endif
}
#else
float rotated_one(int row, int angles, int column, float v) {
    int own = column % HEAD_DIM;
    if (own >= ROTARY) return v;
#if INTERLEAVED
    bool upper = own % 2 == 1;
    int pair = own / 2, distance = 1;
#else
    bool upper = own >= ROTARY / 2;
    int pair = own % (ROTARY / 2), distance = ROTARY / 2;
#endif
    int other_column = upper ? column - distance : column + distance;
    float other = X_AT(other_column / 4)[other_column % 4];
    vec4 t = TABLE_AT(pair / 2);
    vec2 angle = pair % 2 == 0 ? t.xy : t.zw;
    return v * angle.x + (upper ? other : -other) * angle.y;
}

vec4 rotated(int row, int angles, int texel, vec4 v) {
    ivec4 columns = columns_of(texel);
    v.x = rotated_one(row, angles, columns.x, v.x);
    v.y = rotated_one(row, angles, columns.y, v.y);
    v.z = rotated_one(row, angles, columns.z, v.z);
    v.w = rotated_one(row, angles, columns.w, v.w);
    return v;
}
#endif

void main() {
    ivec2 at = output_place();
    int row = at.x;
    y = trimmed(rotated(row, angle_row(row), at.y, X_AT(at.y)), at.y, OUT_COLS);
}

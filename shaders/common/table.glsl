// Rows of a table of embeddings, four floats a texel: from a table of floats (RowLayout in glinfer/gl/layouts/blocks.py), or
// with TABLE_FORMAT from a packed matrix (glinfer/gl/layouts/grouped.py), which products also read.
#if TABLE_FORMAT
#define SHARED_BY_QUAD QUAD_TABLE
#include "common/grouped.glsl"
#include "common/lines.glsl"

vec4 table_row(int row, int column) {
    int block = row >> 6, half_block = (row >> 5) & 1, quad = (row >> 4) & 1, third = (row >> 2) & 3, output_number = row & 3;
    int group = column >> 3, t = column & 7, w = t & 3;
#if QUAD_TABLE
    int a = third, lane = 4 * quad + (group & 3);
#else
    int a = group & 3, lane = 4 * quad + third;
#endif
    int member = lane & 3;
    int number = (2 * block + half_block) * STEPS + (group >> 2);
    ivec2 line = line_at(number, WEIGHT_COLUMNS, 8 * LINE_TEXELS) + ivec2(lane, 0);
    Scales s = SCALES_OF(a);
    float factor = (t < 4 ? s.first : s.second)[output_number];
    // The minimum of a whole group is stored with its first half.
    float least = (t < 4 || !HALVED ? s.least_first : s.least_second)[output_number];
#if FORM_LOW == 8
    uint word = LINE_TEXEL(2 * (4 * w + a) + (t >> 2))[output_number];
#else
    uint word = (LINE_TEXEL(4 * w + a)[output_number] >> uint(4 * (t >> 2))) & 0x0f0f0f0fu;
#if FORM_HIGH == 1
    word |= ((LINE_TEXEL(HIGH_AT + a)[output_number] >> uint(t)) & 0x01010101u) << 4u;
#elif FORM_HIGH == 2
    word |= ((LINE_TEXEL(HIGH_AT + 4 * (t >> 2) + a)[output_number] >> uint(2 * w)) & 0x03030303u) << 4u;
#endif
#endif
    return group_weights_of(word, factor, least);
}
#else
uniform sampler2D wte;

vec4 table_row(int row, int column) {
    return FETCH(wte, ivec2((row / WTE_STACK) * WTE_TEXELS + column, row % WTE_STACK), ivec2(WTE_WIDTH, WTE_HEIGHT));
}
#endif

#if POSITIONS
uniform sampler2D wpe;
#endif

// The first values of a token's residual stream.
vec4 embedding(int token, int position, int column) {
    vec4 y = table_row(token, column) * float(EMBEDDING_SCALE);
#if POSITIONS
    int row = min(position, WPE_WIDTH / WPE_TEXELS * WPE_STACK - 1);  // positions of padding rows may be after the table
    y += FETCH(wpe, ivec2((row / WPE_STACK) * WPE_TEXELS + column, row % WPE_STACK), ivec2(WPE_WIDTH, WPE_HEIGHT));
#endif
    return y;
}

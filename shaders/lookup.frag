#version 300 es
// Row r of y is row ids[r] of a table, or zeros if the table has no such row. ids is a matrix of
// IDS_COLS columns, read row by row; weight [WEIGHT_ROWS, OUT_COLS] is a table in any format (common/weights.glsl) or,
// with WHOLE, of 32-bit integers, as is y. Four elements a texel (common/flat.glsl).
#include "common/flat.glsl"
#ifdef IMAGES_TEXELS
uniform sampler2D images;  // the row of an id beyond the table
#endif
uniform isampler2D ids;
#if WHOLE
uniform isampler2D weight;
layout(location = 0) out ivec4 y;
#else
#include "common/weights.glsl"
layout(location = 0) out vec4 y;
#endif

void main() {
    ivec2 at = output_place();
    int ids_row = at.x / IDS_COLS, column = at.x % IDS_COLS;
    int id = TEXEL(ids, ids_row * IDS_TEXELS + (column >> 2), IDS_WIDTH, IDS_HEIGHT)[column & 3];
#ifdef IMAGES_TEXELS
    if (id >= WEIGHT_ROWS) {
        y = TEXEL(images, at.x * IMAGES_TEXELS + at.y, IMAGES_WIDTH, IMAGES_HEIGHT);
        return;
    }
#endif
    int row = clamp(id, 0, WEIGHT_ROWS - 1);
#if WHOLE
    ivec4 found = TEXEL(weight, row * WEIGHT_TEXELS + at.y, WEIGHT_WIDTH, WEIGHT_HEIGHT);
    y = id == row ? found : ivec4(0);
#else
    y = id == row ? trimmed(weights_at(row, at.y), at.y, OUT_COLS) : vec4(0.0);
#endif
}

#version 300 es
// One number from the statistics of each row, four rows a texel: the sum, the largest x, or with COLUMN the column of the
// largest x as an integer. Element i of the output, in row-major order, belongs to row i of `stats`.
#include "common/flat.glsl"
#include "common/stats_of.glsl"
#include "common/four_rows.glsl"
#if COLUMN
layout(location = 0) out ivec4 y;
#else
layout(location = 0) out vec4 y;
#endif

void main() {
    ivec2 at = output_place();
    ivec4 row = rows_of(at);
    vec4 a = stats_of(row.x), b = stats_of(row.y), c = stats_of(row.z), d = stats_of(row.w);
#if COLUMN
    y = trimmed(ivec4(a.y, b.y, c.y, d.y), at.y, OUT_COLS);
#else
    y = trimmed(vec4(a.x, b.x, c.x, d.x), at.y, OUT_COLS);
#endif
}

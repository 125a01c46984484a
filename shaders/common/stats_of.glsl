// The statistics of rows whose parts are side by side in the tensor `stats`, see common/stats.glsl.
#include "common/stats.glsl"
uniform sampler2D stats;

const int TOGETHER = 16;  // parts to merge first, so that small numbers are rarely added to large ones

vec4 part_of(int row, int part) {
    return TEXEL(stats, row * STATS_TEXELS + part, STATS_WIDTH, STATS_HEIGHT);
}

// Merges parts [first, end) of a row.
vec4 merged_parts(int row, int first, int end) {
    vec4 found = vec4(0.0);
    for (int start = first; start < end; start += TOGETHER) {
        vec4 some = part_of(row, start);
        for (int part = start + 1; part < min(start + TOGETHER, end); part++) some = merged(some, part_of(row, part));
        found = start == first ? some : merged(found, some);
    }
    return found;
}

vec4 stats_of(int row) {
    return merged_parts(row, 0, STATS_TEXELS);
}

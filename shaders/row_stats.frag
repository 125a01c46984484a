#version 300 es
// Statistics of parts of rows (common/stats.glsl): texel p of a row of the output covers the columns in texels
// p · PART_TEXELS to (p + 1) · PART_TEXELS - 1 of the same row of x (common/row_values.glsl). Each fragment reads its
// part, for MOMENTS twice; the sum of exponentials is rescaled at each larger x.
#include "common/flat.glsl"
#include "common/stats.glsl"
#include "common/row_values.glsl"
layout(location = 0) out vec4 y;

const int BLOCK = 16;  // texels to sum separately, so that small numbers are rarely added to large ones

float total(vec4 v) {
    return (v.x + v.y) + (v.z + v.w);
}

#if STAT == SUM || STAT == SQUARES || STAT == MOMENTS
// The sum of x - some - mean over texels [first, end) of a row, or of its squares. Padding is zero, and stays so.
float sum_of(int row, int first, int end, float some, float mean, bool squared) {
    vec4 sum = vec4(0.0);
    for (int start = first; start < end; start += BLOCK) {
        vec4 part = vec4(0.0);
        for (int texel = start; texel < min(start + BLOCK, end); texel++) {
            vec4 v = values_at(row, texel);
#if STAT == MOMENTS
            v = trimmed(v - some - mean, texel, COLS);
#endif
            part += squared ? v * v : v;
        }
        sum += part;
    }
    return total(sum);
}
#endif

vec4 stats_of_part(int row, int first, int end) {
#if STAT == MOMENTS
    float some = values_at(row, first).x, count = float(min(4 * end, COLS) - 4 * first);
    float mean = sum_of(row, first, end, some, 0.0, false) / count;
    return vec4(some, mean, sum_of(row, first, end, some, mean, true), count);
#elif STAT == LARGEST
    vec4 best = values_at(row, first).xxxx, where = vec4(first);
    for (int texel = first; texel < end; texel++) {
        vec4 v = values_at(row, texel);
#if COLS % 4
        v = mix(v.xxxx, v, lessThan(columns_of(texel), ivec4(COLS)));
#endif
        bvec4 better = bvec4(beats(v.x, best.x), beats(v.y, best.y), beats(v.z, best.z), beats(v.w, best.w));
        best = mix(best, v, better);
        where = mix(where, vec4(texel), better);
    }
    vec4 column = 4.0 * where + vec4(0.0, 1.0, 2.0, 3.0);
    return merged(
        merged(vec4(best.x, column.x, 0.0, 0.0), vec4(best.y, column.y, 0.0, 0.0)),
        merged(vec4(best.z, column.z, 0.0, 0.0), vec4(best.w, column.w, 0.0, 0.0)));
#elif STAT == EXPONENTS
    float largest = LOWEST, sum = 0.0;
    for (int texel = first; texel < end; texel++) {
        vec4 v = values_at(row, texel);
#if COLS % 4
        v = mix(vec4(uintBitsToFloat(MINUS_INFINITY)), v, lessThan(columns_of(texel), ivec4(COLS)));
#endif
        float higher = max(max(max(v.x, v.y), max(v.z, v.w)), largest);
        sum = sum * exp(largest - higher) + total(exp(v - higher));
        largest = higher;
    }
    return vec4(largest, sum, 0.0, 0.0);
#else
    return vec4(sum_of(row, first, end, 0.0, 0.0, STAT == SQUARES), 0.0, 0.0, 0.0);
#endif
}

void main() {
    ivec2 at = output_place();
    int first = at.y * PART_TEXELS;
    y = stats_of_part(at.x, first, min(first + PART_TEXELS, (COLS + 3) / 4));
}

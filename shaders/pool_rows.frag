#version 300 es
// Pools the vectors of each text's tokens into one vector. The table rows has a text in each row: its tokens are the rows
// base + position to base + last of x. POOL is 0 for their mean, 1 for the maximum of each column, 2 for their sum divided
// by the square root of their number, 3 for their mean with weights 1, 2, 3, …
// Row ROWS · slot + n of x is in slot `slot` of texture n, as are texts in y.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/row_info.glsl"
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_TARGET)

#if POOL == 1
#define TAKE(v, token) found = max(found, v)
#elif POOL == 3
#define TAKE(v, token) found += float(token - base + 1) * (v)
#else
#define TAKE(v, token) found += v
#endif
#define TAKE_ROW(n, X, R, Y, V, A, B, C, D, E, F, S) \
    if (ROWS * slot + n >= first && ROWS * slot + n <= last) TAKE(FETCH(X, from, X_SIZE), ROWS * slot + n);

vec4 pooled(int text) {
    uvec4 info = ROW_TEXEL(text, 0);
    int base = int(info.z), first = base + int(info.y), last = base + int(ROW_TEXEL(text, 1).w);
    float count = float(last - first + 1);
#if POOL == 1
    vec4 found = vec4(-3.4e38);
#else
    vec4 found = vec4(0.0);
#endif
    for (int slot = first / ROWS; slot <= last / ROWS; slot++) {
        ivec2 from = block_origin(slot, out_block, X_LAYOUT) + lane_offset(out_lane);
        EACH_ROW(TAKE_ROW)
    }
#if POOL == 0
    return found / count;
#elif POOL == 2
    return found / sqrt(count);
#elif POOL == 3
    // The sum of the weights from the first token to the last.
    return found / (0.5 * count * float(first + last - 2 * base + 2));
#else
    return found;
#endif
}

#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) Y = texts[n];

void main() {
    locate();
    vec4 texts[ROWS];
    for (int n = 0; n < ROWS; n++) texts[n] = pooled(ROWS * out_slot + n);
    EACH_ROW(FINISH)
}

#version 300 es
// One pass of a merge sort of keys and columns: of the lists of a row, which sort_chunks.frag began, lists 2i and 2i+1
// become list i, or its start. The input has list_count lists of list_texels texels each; list l of row r is number
// l * ROWS + r. Each fragment finds by bisection how many elements of the first list precede its four (the merge
// path of Green, McColl and Bader 2012), texel by texel, then merges the next four of both lists.
#include "common/flat.glsl"
uniform usampler2D keys, columns;
uniform int list_count, list_texels;
uniform int merged_shift;  // merged lists have 1 << merged_shift texels, or KEPT texels if it is -1
layout(location = 0) out uvec4 merged_columns;
layout(location = 1) out uvec4 merged_keys;  // without a target in the last pass of the sort

#define KEYS_AT(texel) TEXEL(keys, texel, KEYS_WIDTH, KEYS_HEIGHT)
#define COLUMNS_AT(texel) TEXEL(columns, texel, COLUMNS_WIDTH, COLUMNS_HEIGHT)
#define OR_NOTHING(condition, value) ((condition) ? (value) : uvec4(0))

// a in chosen lanes, b elsewhere.
uvec4 chosen(bvec4 which, uvec4 a, uvec4 b) {
    uvec4 mask = 0u - uvec4(which);
    return (a & mask) | (b & ~mask);
}

// Four elements from lane `skip` (0 to 4) on, of two adjacent texels.
uvec4 from_lane(int skip, uvec4 a, uvec4 b) {
    if ((skip & 4) != 0) a = b;
    if ((skip & 2) != 0) {
        a = uvec4(a.zw, b.xy);
        b.x = b.z;
    }
    return (skip & 1) != 0 ? uvec4(a.yzw, b.x) : a;
}

// Orders each pair of lanes: the larger first, in ties the lower column.
void order(inout uvec2 key, inout uvec2 other_key, inout uvec2 column, inout uvec2 other_column) {
    for (int lane = 0; lane < 2; lane++) {
        bool equals = key[lane] == other_key[lane];
        if (equals ? other_column[lane] < column[lane] : other_key[lane] > key[lane]) {
            uint held = key[lane];
            key[lane] = other_key[lane];
            other_key[lane] = held;
            held = column[lane];
            column[lane] = other_column[lane];
            other_column[lane] = held;
        }
    }
}

void main() {
    int texel = output_place().x;  // over all lists, whose matrix has one texel a row
    int list = merged_shift < 0 ? texel / KEPT : texel >> merged_shift;
    int quad = texel - list * (merged_shift < 0 ? KEPT : 1 << merged_shift);
    int pair = list / ROWS, row = list % ROWS;
    int first = (2 * pair * ROWS + row) * list_texels, second = first + ROWS * list_texels;
    int seconds = 2 * pair + 1 < list_count ? list_texels : 0;  // the last list may have no partner

    int low = max(0, quad - seconds), end = min(quad, list_texels), high = end;
    while (low < high) {
        int middle = (low + high) >> 1;
        bvec4 firsts = greaterThanEqual(KEYS_AT(first + middle), KEYS_AT(second + quad - 1 - middle).wzyx);
        if (all(firsts)) low = middle + 1;
        else high = middle;
    }

    // low texels of the first list come before, quad - 1 - low of the second, and four more elements of both.
    int behind = quad - low, before = max(behind - 1, 0);
    uvec4 a_keys = OR_NOTHING(low < list_texels, KEYS_AT(first + low));
    uvec4 b_keys = OR_NOTHING(before < seconds, KEYS_AT(second + before));
    uvec4 firsts = uvec4(greaterThanEqual(a_keys, b_keys.wzyx));
    int skip = low < end ? int(firsts.x + firsts.y + firsts.z + firsts.w) : 0;
    bool a_next = low + 1 < list_texels, b_next = behind < seconds;
    a_keys = from_lane(skip, a_keys, OR_NOTHING(a_next, KEYS_AT(first + low + 1)));
    b_keys = from_lane(4 - skip, b_keys, OR_NOTHING(b_next, KEYS_AT(second + behind))).wzyx;
    uvec4 a_columns = from_lane(
        skip,
        OR_NOTHING(low < list_texels, COLUMNS_AT(first + low)),
        OR_NOTHING(a_next, COLUMNS_AT(first + low + 1))
    );
    uvec4 b_columns = from_lane(
        4 - skip,
        OR_NOTHING(before < seconds, COLUMNS_AT(second + before)),
        OR_NOTHING(b_next, COLUMNS_AT(second + behind))
    ).wzyx;

    // The four largest of both, descending then ascending: two steps of a bitonic sort (Batcher 1968) order them.
    bvec4 from_first = greaterThanEqual(a_keys, b_keys);
    merged_keys = chosen(from_first, a_keys, b_keys);
    merged_columns = chosen(from_first, a_columns, b_columns);
    uvec2 key = merged_keys.xy, other_key = merged_keys.zw;
    uvec2 column = merged_columns.xy, other_column = merged_columns.zw;
    order(key, other_key, column, other_column);
    merged_keys = uvec4(key, other_key);
    merged_columns = uvec4(column, other_column);
    key = merged_keys.xz, other_key = merged_keys.yw, column = merged_columns.xz, other_column = merged_columns.yw;
    order(key, other_key, column, other_column);
    merged_keys = uvec4(key, other_key).xzyw;
    merged_columns = uvec4(column, other_column).xzyw;
}

#version 300 es
// t[r, i] = sum over j of down[i, j] · x[r, j], four ranks i of one row r a fragment: the first product of a LoRA adapter.
// The second is part of the product that the adapter changes (shaders/common/low_rank.glsl). down stacks the matrices of
// all adapters, RANKS rows each. Every row r of a run has its own adapter; adapter 0 gives zeros.
// x and t are in blocks; row ROWS · slot + n of x is in slot `slot` of texture n, or with TOGETHER in slot r of the one
// texture x. t has a slot for each row. down is in lines (glinfer/gl/layouts/packing.py), without QUAD.
// With EXPERTS each row of t has the vectors of USED experts side by side, RANKS each, and down stacks the matrices of all
// experts of an adapter. Texel i of the row of choice (shaders/route.frag) names the i-th expert, whose inputs are
// X_PART · i blocks further on in the row of x.
// With PARTS each instance runs its share of the STEPS, and blending adds them up.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
#include "common/lines.glsl"
#if TOGETHER
uniform sampler2D x;
#define FETCH_INPUT(V) V = FETCH(x, IN_X(block_origin(out_slot, x_first + (step >> 2), X_LAYOUT) + inner), X_SIZE);
#else
EACH_ROW(DECLARE_INPUT)
// A block of t belongs to one row, so all fragments of a quad agree.
#define PICK(n, X, R, Y, V, A, B, C, D, E, F, S) if (n == out_slot % ROWS) picked = FETCH(X, from, X_SIZE);
#define FETCH_INPUT(V) \
    { ivec2 from = block_origin(out_slot / ROWS, step >> 2, X_LAYOUT) + inner; vec4 picked; EACH_ROW(PICK) V = picked; }
#endif
uniform sampler2D down;
uniform int share;
#ifdef LORA_BY_ROW
#include "common/row_info.glsl"
#define ADAPTER_OF(row) int(ROW_TEXEL(row, 0).w)
#else
uniform int adapter;
#define ADAPTER_OF(row) adapter
#endif
#ifdef EXPERTS
#include "common/choices.glsl"
#endif
#ifdef PARTS
flat in int part;
#else
const int part = 0;
#endif
layout(location = 0) out vec4 t;

#define DOWN(texel) FETCH(down, (line + ivec2(8 * (texel), 0)), ivec2(DOWN_WIDTH, DOWN_HEIGHT))

void main() {
    locate();
    int number = ADAPTER_OF(out_slot), own = 16 * out_block + out_lane, x_first = 0;
#ifdef EXPERTS
    int chosen = min(own / (RANKS / 4), USED - 1);
    int group = (number - 1) * EXPERTS + expert_at(out_slot, chosen);
    own -= chosen * (RANKS / 4);
    x_first = chosen * X_PART;
#else
    int group = number - 1;
#endif
    bool used = number > 0 && own < RANKS / 4;
    // The texel of outputs in the matrix of all adapters.
    int texel = used ? group * (RANKS / 4) + own : 0;
    int before = (2 * (texel >> 4) + ((texel >> 3) & 1)) * STEPS;
    int first = part * share, end = used ? first + share : first;
    vec4 sum[4] = vec4[4](vec4(0.0), vec4(0.0), vec4(0.0), vec4(0.0));
    for (int step = first; step < end; step++) {
        ivec2 line = line_at(before + step, DOWN_COLUMNS, 8 * 16) + ivec2(texel & 7, 0);
        ivec2 corner = 2 * ivec2(step & 1, (step >> 1) & 1);
        for (int a = 0; a < 4; a++) {
            ivec2 inner = corner + ivec2(a & 1, a >> 1);
            vec4 v;
            FETCH_INPUT(v)
            sum[a] += DOWN(4 * a) * v.x + DOWN(4 * a + 1) * v.y;
            sum[a] += DOWN(4 * a + 2) * v.z + DOWN(4 * a + 3) * v.w;
        }
    }
    t = (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

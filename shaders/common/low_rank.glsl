// The term that a LoRA adapter adds to a product: up @ t, with t = down @ x from shaders/lora_down.frag. t is in blocks, a
// slot for each row of the run; up is in lines (glinfer/gl/layouts/packing.py), the matrices of all adapters side by side.
// Each has LORA_STEPS steps of 16 ranks, and with LORA_BIASED one step more, whose first number is the adapter's bias,
// added after the norm. Adapter 0 adds nothing and runs no step.
uniform sampler2D lora_t;
uniform sampler2D lora_up;
#ifdef LORA_BY_ROW
#define ADAPTER_OF(row) int(ROW_TEXEL(row, 0).w)
#else
uniform int adapter;
#define ADAPTER_OF(row) adapter
#endif
#define LORA_LAYOUT LORA_T_TILES, LORA_T_PITCH, LORA_T_SLOT_STEP, LORA_T_BLOCK_STEP, LORA_T_COLUMNS
#define LORA_UP(texel) FETCH(lora_up, (line + ivec2(8 * (texel), 0)), ivec2(LORA_UP_WIDTH, LORA_UP_HEIGHT))

// The line of a step of an adapter, for a texel of outputs.
ivec2 low_rank_line(int block, int lane, int number, int step) {
    int before = (2 * block + (lane >> 3)) * LORA_ALL_STEPS + (number - 1) * (LORA_STEPS + LORA_BIASED);
    return line_at(before + step, LORA_UP_COLUMNS, 8 * 16) + ivec2(lane & 7, 0);
}

// The sum for texel `lane` of output block `block`, over the ranks from step `first` of the row of t on.
vec4 low_rank(int block, int lane, int row, int number, int first) {
    vec4 total = vec4(0.0);
    int steps = number > 0 ? LORA_STEPS : 0;
    for (int step = 0; step < steps; step++) {
        ivec2 line = low_rank_line(block, lane, number, step);
        int from = first + step;
        ivec2 corner = block_origin(row, from >> 2, LORA_LAYOUT) + 2 * ivec2(from & 1, (from >> 1) & 1);
        for (int a = 0; a < 4; a++) {
            vec4 v = FETCH(lora_t, (corner + ivec2(a & 1, a >> 1)), ivec2(LORA_T_WIDTH, LORA_T_HEIGHT));
            total += LORA_UP(4 * a) * v.x + LORA_UP(4 * a + 1) * v.y;
            total += LORA_UP(4 * a + 2) * v.z + LORA_UP(4 * a + 3) * v.w;
        }
    }
    return total;
}

#if LORA_BIASED
// The bias, which is added after the norm.
vec4 low_rank_bias(int block, int lane, int number) {
    ivec2 line = low_rank_line(block, lane, max(number, 1), LORA_STEPS);
    return number > 0 ? LORA_UP(0) : vec4(0.0);
}
#endif

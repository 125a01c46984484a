#version 300 es
// Results of attention times the sigmoid of gates: y = x · sigmoid(gate), element by element. x, y [rows, C] in blocks; the gates
// of a row begin at block GATE_BLOCK of its row, with HEAD_FLOATS one for each head of that size. Row ROWS · slot + n is in
// slot `slot` of texture n of each.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_SECOND)
EACH_ROW(DECLARE_TARGET)

#ifdef HEAD_FLOATS
#define GATE(T) vec4(T[head & 3])
#else
#define GATE(T) T
#endif
#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    Y = FETCH(X, from, X_SIZE) / (1.0 + exp(-max(GATE(FETCH(R, gate, ivec2(R_WIDTH, R_HEIGHT))), -88.0)));

void main() {
    locate();
    ivec2 from = block_origin(out_slot, out_block, X_LAYOUT) + lane_offset(out_lane);
#ifdef HEAD_FLOATS
    int head = 4 * (16 * out_block + out_lane) / HEAD_FLOATS, own = GATE_BLOCK + (head >> 6), lane = (head >> 2) & 15;
#else
    int own = GATE_BLOCK + out_block, lane = out_lane;
#endif
    ivec2 gate = block_origin(out_slot, own, R_TILES, R_PITCH, R_SLOT_STEP, R_BLOCK_STEP, R_COLUMNS) + lane_offset(lane);
    EACH_ROW(FINISH)
}

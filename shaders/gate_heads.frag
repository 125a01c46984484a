#version 300 es
// Results of attention times the sigmoid of gates: y = x · sigmoid(gate), element by element. x, y [rows, C] in blocks; the gates
// of a row begin at block GATE_BLOCK of its row. Row ROWS · slot + n is in slot `slot` of texture n of each.
#include "common/block_pass.glsl"
#include "common/each_row.glsl"
EACH_ROW(DECLARE_INPUT)
EACH_ROW(DECLARE_SECOND)
EACH_ROW(DECLARE_TARGET)

#define FINISH(n, X, R, Y, V, A, B, C, D, E, F, S) \
    Y = FETCH(X, from, ivec2(X_WIDTH, X_HEIGHT)) / (1.0 + exp(-max(FETCH(R, gate, ivec2(R_WIDTH, R_HEIGHT)), -88.0)));

void main() {
    locate();
    ivec2 from = block_origin(out_slot, out_block, X_TILES, X_PITCH, X_SLOT_STEP, X_BLOCK_STEP, X_COLUMNS) + lane_offset(out_lane);
    ivec2 gate = block_origin(out_slot, GATE_BLOCK + out_block, R_TILES, R_PITCH, R_SLOT_STEP, R_BLOCK_STEP, R_COLUMNS) +
                 lane_offset(out_lane);
    EACH_ROW(FINISH)
}

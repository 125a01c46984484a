// Four rows' factors, or means from quad 2 on, of a fragment's slot (shaders/row_norms.frag).
uniform sampler2D norms;
#define NORMS_LAYOUT NORMS_TILES, NORMS_PITCH, NORMS_SLOT_STEP, NORMS_BLOCK_STEP, NORMS_COLUMNS
#define NORM_TEXEL(quad) FETCH(norms, (block_origin(out_slot, 0, NORMS_LAYOUT) + lane_offset(4 * (quad) + (out_lane & 3))), \
                               ivec2(NORMS_WIDTH, NORMS_HEIGHT))

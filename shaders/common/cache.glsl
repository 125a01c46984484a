// The cache of attention in blocks; with CACHE_SCALES_AT it has bytes, and from that block on their scales (common/bytes.glsl).
#define CACHE_LAYOUT CACHE_TILES, CACHE_PITCH, CACHE_SLOT_STEP, CACHE_BLOCK_STEP, CACHE_COLUMNS
#define CACHE_SIZE ivec2(CACHE_WIDTH, CACHE_HEIGHT)
#ifdef CACHE_SCALES_AT
#include "common/bytes.glsl"
uniform isampler2D cache;
#else
uniform sampler2D cache;
#endif

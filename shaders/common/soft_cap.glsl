// cap · tanh(x / cap), which bounds x smoothly. A NaN stays.
#include "common/tanh.glsl"

vec4 soft_capped(vec4 x, float cap) {
    vec4 u = x / cap;
    return cap * tanh_of(u);
}

// Scores of attention, bounded with SCORE_CAP.
#ifdef SCORE_CAP
#define CAPPED(scores) soft_capped(scores, float(SCORE_CAP))
#else
#define CAPPED(scores) scores
#endif

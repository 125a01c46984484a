// Penalties and biases of a row's logits from the table `changes` (glinfer/ops/fused/changes.py). CHANGED is the limit for
// tokens of the row that are in `picks` but not yet in the table.
#ifdef CHANGED
#include "common/picked.glsl"
uniform sampler2D changes;
uniform int first_slot;
#define CHANGES_TEXEL(source, i) TEXEL(changes, CHANGES_TEXELS * (source) + (i), CHANGES_WIDTH, CHANGES_HEIGHT)
#define CHANGE_OF(source, token) CHANGES_TEXEL(source, 1 + ((token) >> 1))

struct Changes {
    bool any;
    vec4 penalties;  // repetition, 1 / repetition, presence, frequency
    int ahead[CHANGED];  // tokens that are not in the table yet, or -1
};

// The changes in row `source` of the table, by the change word of a row that writes slot `slot` of picks.
Changes changes_of(uint word, int source, int slot) {
    Changes found;
    found.any = word != 0u;
    found.penalties = CHANGES_TEXEL(source, 0);
    int count = int(word & 0xffffu) >> 1, first = slot - int(word >> 16u);
    for (int i = 0; i < CHANGED; i++) found.ahead[i] = -1;
    for (int i = 0; i < count; i++) found.ahead[i] = best_candidate(first + i);
    return found;
}

// The changed logit of a token with this (bias, code) in the table.
float changed(Changes by, float logit, int token, vec2 change) {
    float ahead = 0.0;
    for (int i = 0; i < CHANGED; i++) ahead += by.ahead[i] == token ? 1.0 : 0.0;
    float half_code = 0.5 * change.y, count = floor(half_code) + ahead;
    if (!by.any) return logit;
    logit += change.x - (count > 0.0 ? by.penalties.z + by.penalties.w * count : 0.0);
    bool seen = ahead + fract(half_code) > 0.0, finite = (floatBitsToUint(logit) & 0x7f800000u) != 0x7f800000u;
    float penalised = clamp(logit * (logit > 0.0 ? by.penalties.y : by.penalties.x), -3.4028234e38, 3.4028234e38);
    return seen && finite ? penalised : logit;
}
#endif

// Penalties and biases of a row's logits from the table `changes` (glinfer/kernels/fused/changes.py). CHANGED is the limit for
// tokens of the row that are in `picks` but not yet in the table.
#ifdef CHANGED
#include "common/picked.glsl"
uniform sampler2D changes;
uniform int first_slot;
#define CHANGES_TEXEL(source, i) TEXEL(changes, CHANGES_TEXELS * (source) + (i), CHANGES_WIDTH, CHANGES_HEIGHT)
#define CHANGE_OF(source, token) CHANGES_TEXEL(source, 1 + ((token) >> 1))

bool any_change = false;
vec4 penalties;  // repetition, 1 / repetition, presence, frequency
int ahead[CHANGED];  // tokens that are not in the table yet, or -1

// Reads the changes in row `source` of the table, by the change word of a row that writes slot `slot` of picks.
void find_changes(uint word, int source, int slot) {
    any_change = word != 0u;
    penalties = CHANGES_TEXEL(source, 0);
    int count = int(word & 0xffffu) >> 1, first = slot - int(word >> 16u);
    for (int i = 0; i < CHANGED; i++) ahead[i] = -1;
    for (int i = 0; i < count; i++) ahead[i] = best_candidate(first + i);
}

// The changed logit of a token with this (bias, code) in the table.
float changed(float logit, int token, vec2 change) {
    float further = 0.0;
    for (int i = 0; i < CHANGED; i++) further += ahead[i] == token ? 1.0 : 0.0;
    float half_code = 0.5 * change.y, count = floor(half_code) + further;
    if (!any_change) return logit;
    logit += change.x - (count > 0.0 ? penalties.z + penalties.w * count : 0.0);
    bool seen = further + fract(half_code) > 0.0, finite = (floatBitsToUint(logit) & 0x7f800000u) != 0x7f800000u;
    float penalised = clamp(logit * (logit > 0.0 ? penalties.y : penalties.x), -3.4028234e38, 3.4028234e38);
    return seen && finite ? penalised : logit;
}
#endif

// The experts that a row chooses by its router's outputs: the USED largest of EXPERTS logits, in ties the first.
// Needs ROUTED(t), texel t of the EXPERT_TEXELS texels of the row's logits. Each choice scans the logits once, without
// sorting.
// Whether an expert comes after expert `at`, with logit `last`, in the order of choice.
bool comes_after(float logit, int expert, float last, int at) {
    return logit < last || (logit == last && expert > at);
}

// The expert of choice number `rank`. `scores` becomes its logit, the largest of all logits, and the total of
// exp(logit - largest), with NORMALISED over the chosen experts, else over all.
int choice_of(int rank, out vec3 scores) {
    int chosen = 0;
    scores = vec3(0.0);
    float last = 0.0;
    int at = -1;
    for (int n = 0; n < USED; n++) {
        float best = -3.4e38;
        int expert = 0;
        for (int t = 0; t < EXPERT_TEXELS; t++) {
            vec4 logits = ROUTED(t);
            for (int c = 0; c < 4; c++) {
                int e = 4 * t + c;
                bool left = e < EXPERTS && (n == 0 || comes_after(logits[c], e, last, at));
                if (left && logits[c] > best) {
                    best = logits[c];
                    expert = e;
                }
            }
        }
        last = best;
        at = expert;
        if (n == 0) scores.y = best;
        if (n == rank) {
            chosen = expert;
            scores.x = best;
        }
        scores.z += exp(best - scores.y);
    }
#if !NORMALISED
    scores.z = 0.0;
    for (int t = 0; t < EXPERT_TEXELS; t++) {
        vec4 logits = ROUTED(t);
        for (int c = 0; c < 4; c++) {
            if (4 * t + c < EXPERTS) scores.z += exp(logits[c] - scores.y);
        }
    }
#endif
    return chosen;
}

float weight_of(float logit, vec3 scores) {
    return exp(logit - scores.y) / scores.z;
}

// The experts that a row chooses by its router's outputs: the USED largest of EXPERTS logits, in ties the first.
// Needs ROUTED(t), texel t of the EXPERT_TEXELS texels of the row's logits. Each choice scans the logits once, without
// sorting.
struct Choice {
    int expert;     // choice number `rank`
    float logit;
    float largest;  // of all logits
    float total;    // of exp(logit - largest), with NORMALISED over the chosen ones, else over all
};

// Whether an expert comes after expert `at`, with logit `last`, in the order of choice.
bool comes_after(float logit, int expert, float last, int at) {
    return logit < last || (logit == last && expert > at);
}

Choice choice_of(int rank) {
    Choice found = Choice(0, 0.0, 0.0, 0.0);
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
        if (n == 0) found.largest = best;
        if (n == rank) {
            found.expert = expert;
            found.logit = best;
        }
        found.total += exp(best - found.largest);
    }
#if !NORMALISED
    found.total = 0.0;
    for (int t = 0; t < EXPERT_TEXELS; t++) {
        vec4 logits = ROUTED(t);
        for (int c = 0; c < 4; c++) {
            if (4 * t + c < EXPERTS) found.total += exp(logits[c] - found.largest);
        }
    }
#endif
    return found;
}

float weight_of(float logit, Choice choice) {
    return exp(logit - choice.largest) / choice.total;
}

// The experts that a row chooses by its router's outputs: the USED largest of EXPERTS logits, in ties the first.
// Needs ROUTED(t), texel t of the EXPERT_TEXELS texels of the row's logits. Each choice scans the logits once, without
// sorting. With SIGMOID the weights are sigmoids, not a softmax; with BIASED experts are chosen by either plus BIAS(t).
// With GROUPS they are those of GROUPS_KEPT groups: with BIASED those with the largest sum of their best two, else those
// with the best expert. SHARE_EPS is added to the sum of the chosen sigmoids.
#ifdef SIGMOID
float share_of(float logit, float largest) {
    return logit < -88.0 ? 0.0 : 1.0 / (1.0 + exp(-logit));  // below -88 exp overflows
}
#elif defined(BIASED)
#define LEAST_TOTAL 1e-12
float most = -3.4e38, total = 0.0;  // the largest of all logits, and the divisor of their softmax
float share_of(float logit, float largest) {
    return exp(logit - most) / total;
}
#else
float share_of(float logit, float largest) {
    return exp(logit - largest);
}
#endif
#ifndef SHARE_EPS
#define SHARE_EPS 0.0
#endif
#ifdef BIASED
vec4 ranks_of(int t) {
    vec4 logits = ROUTED(t);
    return BIAS(t) + vec4(share_of(logits.x, 0.0), share_of(logits.y, 0.0), share_of(logits.z, 0.0), share_of(logits.w, 0.0));
}
#define LOGIT_OF(expert, rank) ROUTED((expert) >> 2)[(expert) & 3]
#else
vec4 ranks_of(int t) {
    return ROUTED(t);
}
#define LOGIT_OF(expert, rank) rank
#endif

// Whether an expert comes after expert `at`, with rank `last`, in the order of choice.
bool comes_after(float rank, int expert, float last, int at) {
    return rank < last || (rank == last && expert > at);
}

#ifdef GROUPS
#define GROUP_SIZE (EXPERTS / GROUPS)
bool kept_groups[GROUPS];  // whether the experts of a group may be chosen
#define IN_KEPT_GROUP(expert) kept_groups[(expert) / GROUP_SIZE]
void keep_groups() {
    float group_ranks[GROUPS];
    for (int g = 0; g < GROUPS; g++) {
        vec2 best = vec2(-3.4e38);
        int first = GROUP_SIZE * g, end = first + GROUP_SIZE;
        for (int t = first >> 2; 4 * t < end; t++) {
            vec4 ranks = ranks_of(t);
            for (int c = 0; c < 4; c++) {
                if (4 * t + c < first || 4 * t + c >= end) continue;
                best = ranks[c] > best.x ? vec2(ranks[c], best.x) : vec2(best.x, max(ranks[c], best.y));
            }
        }
#ifdef BIASED
        group_ranks[g] = best.x + best.y;
#else
        group_ranks[g] = best.x;
#endif
    }
    for (int g = 0; g < GROUPS; g++) {
        int before = 0;
        for (int other = 0; other < GROUPS; other++) {
            before += int(comes_after(group_ranks[g], g, group_ranks[other], other));
        }
        kept_groups[g] = before < GROUPS_KEPT;
    }
}
#else
#define IN_KEPT_GROUP(expert) true
#endif

// The expert of choice number `number`. `scores` becomes its logit, that of the first choice, the divisor of its share, and
// its rank. With NORMALISED the divisor is the total of the chosen experts, else of all, or 1 for shares of 1.
int choice_of(int number, out vec4 scores) {
    int chosen = 0;
    scores = vec4(0.0, 0.0, SHARE_EPS, 0.0);
    float last = 0.0;
    int at = -1;
#ifdef LEAST_TOTAL
    for (int e = 0; e < EXPERTS; e++) most = max(most, ROUTED(e >> 2)[e & 3]);
    for (int e = 0; e < EXPERTS; e++) total += exp(ROUTED(e >> 2)[e & 3] - most);
#endif
#ifdef GROUPS
    keep_groups();
#endif
    for (int n = 0; n < USED; n++) {
        float best = -3.4e38;
        int expert = 0;
        for (int t = 0; t < EXPERT_TEXELS; t++) {
            vec4 ranks = ranks_of(t);
            for (int c = 0; c < 4; c++) {
                int e = 4 * t + c;
                bool left = e < EXPERTS && IN_KEPT_GROUP(e) && (n == 0 || comes_after(ranks[c], e, last, at));
                if (left && ranks[c] > best) {
                    best = ranks[c];
                    expert = e;
                }
            }
        }
        last = best;
        at = expert;
        float logit = LOGIT_OF(expert, best);
        if (n == 0) scores.y = logit;
        if (n == number) {
            chosen = expert;
            scores.x = logit;
            scores.w = best;
        }
        scores.z += share_of(logit, scores.y);
    }
#if !NORMALISED && (defined(SIGMOID) || defined(BIASED))
    scores.z = 1.0;
#elif defined(LEAST_TOTAL)
    scores.z = max(scores.z, LEAST_TOTAL);
#elif !NORMALISED
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

float weight_of(float logit, vec4 scores) {
#ifdef WEIGHT_SCALE
    return WEIGHT_SCALE * (share_of(logit, scores.y) / scores.z);
#else
    return share_of(logit, scores.y) / scores.z;
#endif
}

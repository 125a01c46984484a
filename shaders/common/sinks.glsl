// Attention sinks, one row with a logit for each head: with SINKS a head's softmax has this further logit, which has no value
// (Xiao et al. 2024). LEAST_SCORE is the start of a search for the largest score, and SINK_WEIGHT the sink's term in the
// sum of exponentials. Without SINKS both have no effect.
#ifdef SINKS
uniform sampler2D sinks;

float sink_of(int head) {
    return FETCH(sinks, ivec2(head >> 2, 0), ivec2(SINKS_WIDTH, SINKS_HEIGHT))[head & 3];
}
#define DECLARE_SINK(head) float sink = sink_of(head);
#define LEAST_SCORE max(LEAST, sink)
#define SINK_WEIGHT(peak) + exp(sink - (peak))
#else
#define DECLARE_SINK(head)
#define LEAST_SCORE LEAST
#define SINK_WEIGHT(peak)
#endif

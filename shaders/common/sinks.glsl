// The sinks of attention's heads, in the one row of a table: with SINKS a head's softmax has one logit more, to which no value
// belongs (Xiao et al. 2024). LEAST_SCORE is what a search for the largest score begins with, and SINK_WEIGHT what the sink
// adds to the sum of exponents. Without SINKS both are as if there were none.
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

// The last token that row n of a slot sees, in passes over many rows whose row n is token position + n of its sequence.
// With AHEAD, in models that look both ways, it sees as many tokens after its own, up to `last`, the last of its sequence.
#ifdef AHEAD
#define SEEN(n) min(position + n + AHEAD, last)
#else
#define SEEN(n) (position + n)
#endif

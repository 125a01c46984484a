// The last token that row n of a slot sees, in passes over many rows; row n is token position + n of its sequence.
// In models that look both ways it sees AHEAD tokens after its own, up to `last`, the last token of its sequence.
#ifdef AHEAD
#define SEEN(n) min(position + n + AHEAD, last)
#else
#define SEEN(n) (position + n)
#endif

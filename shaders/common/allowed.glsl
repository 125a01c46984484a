// The allowed tokens of a row, as bits: row r of the table mask has the bit of token t in bit t % 32 of word t / 32, four
// words a texel. It is declared where MASK is defined.
#ifdef MASK
uniform highp usampler2D mask;
#define MASK_TEXEL(row, i) \
    FETCH(mask, ivec2(((row) / MASK_STACK) * MASK_TEXELS + (i), (row) % MASK_STACK), ivec2(MASK_WIDTH, MASK_HEIGHT))
// The bits of the word of token `first`, shifted so that its bit is the lowest.
uint allowed_bits(int row, int first) {
    uvec4 words = MASK_TEXEL(row, min(first >> 7, MASK_TEXELS - 1));
    uvec2 two = (first & 64) == 0 ? words.xy : words.zw;
    return ((first & 32) == 0 ? two.x : two.y) >> uint(first & 31);
}
#endif

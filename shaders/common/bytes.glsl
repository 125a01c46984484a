// Floats in bytes, see glinfer/quant/bytes.py: int8 with a scale for each group of 32. A scale is a bfloat16, the upper half of
// a float. A texel of scales has the two of a block of 64, the first in its first two bytes.

// The bits of the largest absolute value of four floats and `peak`; the bits of NaN are the largest.
uint peak_of(uint peak, vec4 v) {
    uvec4 sizes = floatBitsToUint(v) & 0x7fffffffu;
    return max(peak, max(max(sizes.x, sizes.y), max(sizes.z, sizes.w)));
}

// The bits of a group's scale: 1/127 of its largest absolute value, which has the bits `peak`, rounded up.
uint scale_bits(uint peak) {
    if (peak >= 0x7f800000u) return 0x7fc0u;
    float size = uintBitsToFloat(peak);
    return size < 1e-30 ? 0u : (floatBitsToUint(size * (1.0 / 127.0)) + 0xffffu) >> 16u;
}

ivec4 bytes_of(vec4 v, uint scale) {
    if (scale == 0u || scale >= 0x7f80u) return ivec4(0);
    return clamp(ivec4(floor(v / uintBitsToFloat(scale << 16u) + 0.5)), -127, 127);
}

ivec4 scale_texel(uint first, uint second) {
    uint word = first | (second << 16u);
    return ivec4(uvec4(word) << uvec4(24u, 16u, 8u, 0u)) >> 24;
}

vec2 scales_in(ivec4 texel) {
    uvec4 bytes = uvec4(texel) & 255u;
    return uintBitsToFloat(uvec2(bytes.x | (bytes.y << 8u), bytes.z | (bytes.w << 8u)) << 16u);
}

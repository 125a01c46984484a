// The form of shaders for renderers that cannot render to floats (no EXT_color_buffer_float), which
// glinfer/gl/integer_targets.py rewrites when they are loaded. Float textures hold the bits of their numbers: floats in
// unsigned integers of 32 bits, half floats in signed ones of 16 bits. Their samplers are arrays of one, so that a fetch is
// overloaded by its sampler's type and gives numbers.
precision highp float;
precision highp int;
precision highp isampler2D;
precision highp usampler2D;
#define DEFINE_FETCHES(SAMPLER, NUMBERS, FROM_BITS, x) \
    NUMBERS FETCHED(SAMPLER s, ivec2 texel, int level) { return FROM_BITS(texelFetch(x, texel, level)); } \
    NUMBERS LOOKED_UP(SAMPLER s, vec2 at) { return FROM_BITS(texture(x, at)); } \
    ivec2 SIZE_OF(SAMPLER s, int level) { return textureSize(x, level); }

vec4 floats_of_halves(ivec4 bits) {
    uvec4 halves = uvec4(bits) & 0xffffu;
    return vec4(unpackHalf2x16(halves.x | (halves.y << 16u)), unpackHalf2x16(halves.z | (halves.w << 16u)));
}

ivec4 halves_of_floats(vec4 y) {
    ivec2 pairs = ivec2(packHalf2x16(y.xy), packHalf2x16(y.zw));
    return ivec4(pairs.x << 16u, pairs.x, pairs.y << 16u, pairs.y) >> 16u;
}

DEFINE_FETCHES(usampler2D[1], vec4, uintBitsToFloat, s[0])
DEFINE_FETCHES(isampler2D[1], vec4, floats_of_halves, s[0])
DEFINE_FETCHES(usampler2D, uvec4, uvec4, s)
DEFINE_FETCHES(isampler2D, ivec4, ivec4, s)

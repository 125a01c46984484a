// A product or a sum with a rounding of its own, so that two shaders round alike: compilers that join a product and a sum,
// or reorder them, stop at whole numbers. The uniform share is never negative, which a compiler cannot know.
vec4 settled(vec4 x) {
    return uintBitsToFloat(floatBitsToUint(x) | (uint(share) >> 31));
}

float settled(float x) {
    return uintBitsToFloat(floatBitsToUint(x) | (uint(share) >> 31));
}

// A product, or a sum, rounded by itself, so that two shaders round alike: compilers that join a product and a sum, or put
// them into another order, stop at whole numbers. The uniform share is never negative, which they cannot know.
vec4 settled(vec4 x) {
    return uintBitsToFloat(floatBitsToUint(x) | (uint(share) >> 31));
}

float settled(float x) {
    return uintBitsToFloat(floatBitsToUint(x) | (uint(share) >> 31));
}

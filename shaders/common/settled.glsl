// Rounds a product or a sum separately, so that two shaders round alike: compilers fuse and reorder float operations, but
// not across integers. The uniform share is never negative, which compilers cannot know.
vec4 settled(vec4 x) {
    return uintBitsToFloat(floatBitsToUint(x) | (uint(share >> 31)));
}

float settled(float x) {
    return uintBitsToFloat(floatBitsToUint(x) | (uint(share >> 31)));
}

// One texel of the gradients grad [ids, OUT_COLS]: its elements, with 0 for NaN and infinities, and a mask that is 1 for
// finite elements.
uniform sampler2D grad;

void gradient(int texel, out vec4 elements, out vec4 finite) {
    vec4 v = TEXEL(grad, texel, GRAD_WIDTH, GRAD_HEIGHT);
    // Test the bits, since compilers may assume that no number is NaN. Padding does not count.
    bvec4 counted = notEqual(floatBitsToUint(v) & 0x7f800000u, uvec4(0x7f800000u));
    finite = trimmed(vec4(counted), texel % GRAD_TEXELS, OUT_COLS);
    elements = mix(vec4(0.0), v, counted);
}

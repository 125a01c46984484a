// One texel of the gradients grad [ids, OUT_COLS]: its elements, 0 where they are no finite numbers, and 1 where they
// are.
uniform sampler2D grad;

void gradient(int texel, out vec4 elements, out vec4 finite) {
    vec4 v = TEXEL(grad, texel, GRAD_WIDTH, GRAD_HEIGHT);
    // By the bits: compilers may take it that there is no NaN. Padding counts as no number.
    bvec4 counted = notEqual(floatBitsToUint(v) & 0x7f800000u, uvec4(0x7f800000u));
    finite = trimmed(vec4(counted), texel % GRAD_TEXELS, OUT_COLS);
    elements = mix(vec4(0.0), v, counted);
}

// Gumbel noise of one token at one step, the same as glinfer/kernels/noise.py; change the two together.
//
// noise_key is one number per step, from noise_key() there. Integers and u agree to the last bit, the noise to
// the last bit or two, since compilers may fuse a product and a sum.
precision highp float;
precision highp int;

// Scramble 32 bits, one to one: lowbias32 of Wellons, "Prospecting for Hash Functions" (2018).
uint mix_bits(uint h) {
    h = h ^ (h >> 16u);
    h = h * 0x7feb352du;
    h = h ^ (h >> 15u);
    h = h * 0x846ca68bu;
    return h ^ (h >> 16u);
}

// logf of Moshier's Cephes library, for normal x > 0. Drivers' log has errors of about 2^-22 just below 1, where the
// largest noise, which decides the draw, comes from.
float natural_log(float x) {
    int bits = floatBitsToInt(x);
    int exponent = (bits - 0x3f3504f3) >> 23;
    float f = intBitsToFloat(bits - (exponent << 23)) - 1.0;
    float e = float(exponent);
    float z = f * f;
    float p = 7.0376836292e-2;
    p = p * f - 1.1514610310e-1;
    p = p * f + 1.1676998740e-1;
    p = p * f - 1.2420140846e-1;
    p = p * f + 1.4249322787e-1;
    p = p * f - 1.6668057665e-1;
    p = p * f + 2.0000714765e-1;
    p = p * f - 2.4999993993e-1;
    p = p * f + 3.3333331174e-1;
    p = p * f * z;
    p = p - 2.12194440e-4 * e;
    p = p - 0.5 * z;
    return (f + p) + 0.693359375 * e;
}

float gumbel(uint token, uint noise_key) {
    uint bits = mix_bits(mix_bits(token) ^ noise_key);
    // The middles of 2^23 equal parts of (0, 1), exactly.
    float u = (float(bits >> 9u) + 0.5) * 1.1920928955078125e-7;
    return -natural_log(-natural_log(u));
}

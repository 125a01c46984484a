// x in 255 levels up to the largest |x| of its row, 8 bits (glinfer/kernels/rounded.py).
vec4 rounded(vec4 x, float largest) {
    float scale = 127.0 / max(largest, 1e-5);
    return roundEven(x * scale) / scale;
}

float largest_of(vec4 x) {
    x = abs(x);
    return max(max(x.x, x.y), max(x.z, x.w));
}

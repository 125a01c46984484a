// Sums over the four fragments of a quad, through derivatives.
//
// Loops before an exchange must take the same number of steps in all four fragments. At the edge of a triangle, the
// fragments outside only serve derivatives, and llvmpipe of Mesa 25 ends a loop as soon as no fragment inside the
// triangle continues, even if fragments outside have steps left.
//
// The value v of the horizontal, or the vertical, neighbour in the quad. All four fragments take the derivative outside
// of conditions, where it is defined. Every fragment of a block takes part, so quads are complete.
vec4 across(vec4 v, int lane) {
    vec4 d = dFdx(v);
    return v + ((lane & 1) == 0 ? d : -d);
}

vec4 along(vec4 v, int lane) {
    vec4 d = dFdy(v);
    return v + ((lane & 2) == 0 ? d : -d);
}

// The largest x of the four fragments. The halves of a number's bits are integers, which derivatives pass exactly.
vec4 halves_of(float x) {
    uint bits = floatBitsToUint(x);
    return vec4(float(bits >> 16u), float(bits & 0xffffu), 0.0, 0.0);
}

float joined(vec4 halves) {
    return uintBitsToFloat((uint(halves.x) << 16u) | uint(halves.y));
}

float quad_max(float x, int lane) {
    x = max(x, joined(across(halves_of(x), lane)));
    return max(x, joined(along(halves_of(x), lane)));
}

// The sum of v over the four fragments of a quad.
vec4 quad_sum(vec4 v, int lane) {
    v += across(v, lane);
    return v + along(v, lane);
}

// Each fragment has four parts, one for each member of its quad; each member gets the sum of its parts.
vec4 quad_share(vec4 part[4], int lane) {
    bool right = (lane & 1) != 0, upper = (lane & 2) != 0;
    vec4 low = (right ? part[1] : part[0]) + across(right ? part[0] : part[1], lane);
    vec4 high = (right ? part[3] : part[2]) + across(right ? part[2] : part[3], lane);
    return (upper ? high : low) + along(upper ? low : high, lane);
}

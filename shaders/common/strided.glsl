// A walk over AXES axes (1 to 5) by strides, as glinfer/kernels/flat/strided.py computes it. Axis 0 runs fastest; axis n has
// AXISn_SIZE elements, and a step along it adds (AXISn_A, AXISn_B). The outermost axis, OUTER_A and OUTER_B, has no size.
#define WALK(SIZE, A, B) sum += int(rest % uint(SIZE)) * ivec2(A, B); rest /= uint(SIZE);

// The two numbers of the walk at step `number`.
ivec2 walked(int number) {
    uint rest = uint(number);
    ivec2 sum = ivec2(0);
#if AXES > 1
    WALK(AXIS0_SIZE, AXIS0_A, AXIS0_B)
#endif
#if AXES > 2
    WALK(AXIS1_SIZE, AXIS1_A, AXIS1_B)
#endif
#if AXES > 3
    WALK(AXIS2_SIZE, AXIS2_A, AXIS2_B)
#endif
#if AXES > 4
    WALK(AXIS3_SIZE, AXIS3_A, AXIS3_B)
#endif
    return sum + int(rest) * ivec2(OUTER_A, OUTER_B);
}

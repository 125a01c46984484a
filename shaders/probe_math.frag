#version 300 es
// result = one GLSL operation over x, y and z, chosen by OPERATION, whose rounding depends on the renderer: shows which
// operations make two renderers differ. x, y, z and result are textures of one size, four numbers a texel.
precision highp float;
precision highp sampler2D;
uniform sampler2D x, y, z;
layout(location = 0) out vec4 result;

void main() {
    ivec2 texel = ivec2(gl_FragCoord.xy);
    vec4 a = texelFetch(x, texel, 0), b = texelFetch(y, texel, 0), c = texelFetch(z, texel, 0);
#if OPERATION == 0
    result = a + b;
#elif OPERATION == 1
    result = a * b;
#elif OPERATION == 2
    result = a * b + c;
#elif OPERATION == 3
    result = a / b;
#elif OPERATION == 4
    result = exp(a);
#elif OPERATION == 5
    result = log(abs(a));
#elif OPERATION == 6
    result = sqrt(abs(a));
#elif OPERATION == 7
    result = inversesqrt(abs(a));
#elif OPERATION == 8
    result = tanh(a);
#elif OPERATION == 9
    result = vec4(dot(a, b));
#else
    result = mix(a, b, c);
#endif
}

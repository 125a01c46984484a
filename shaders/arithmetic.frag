#version 300 es
// z = x + y, x - y, x · y or x / y (OPERATION 0 to 3), element by element, with broadcasting.
// An operand with <X>_DIRECT has the shape of z. Otherwise row r of z uses the operand's row walked(r), one number for each
// operand. An operand has the columns of z with <X>_ACROSS, else a single column for all of them.
#include "common/flat.glsl"
#include "common/strided.glsl"
uniform sampler2D x, y;
layout(location = 0) out vec4 z;

void main() {
    ivec2 pixel = ivec2(gl_FragCoord.xy);
    ivec2 at = output_place();
    ivec2 rows = walked(at.x);
#if X_DIRECT
    vec4 a = FETCH(x, pixel, ivec2(X_WIDTH, X_HEIGHT));
#elif X_ACROSS
    vec4 a = TEXEL(x, rows.x * X_TEXELS + at.y, X_WIDTH, X_HEIGHT);
#else
    vec4 a = TEXEL(x, rows.x * X_TEXELS, X_WIDTH, X_HEIGHT).xxxx;
#endif
#if Y_DIRECT
    vec4 b = FETCH(y, pixel, ivec2(Y_WIDTH, Y_HEIGHT));
#elif Y_ACROSS
    vec4 b = TEXEL(y, rows.y * Y_TEXELS + at.y, Y_WIDTH, Y_HEIGHT);
#else
    vec4 b = TEXEL(y, rows.y * Y_TEXELS, Y_WIDTH, Y_HEIGHT).xxxx;
#endif
#if OPERATION == 0
    z = a + b;
#elif OPERATION == 1
    z = a - b;
#elif OPERATION == 2
    z = a * b;
#else
    z = trimmed(a / b, at.y, OUT_COLS);  // 0 / 0 in the padding
#endif
#if !X_ACROSS || !Y_ACROSS
    z = trimmed(z, at.y, OUT_COLS);  // a single column fills the padding too
#endif
}

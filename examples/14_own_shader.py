"""Write your own passes: the guide's LayerNorm and matrix product, compared with NumPy."""

import numpy as np

import glinfer

LAYER_NORM = """
uniform sampler2D x, gamma, beta;
uniform float eps;
out vec4 y;

void main() {
    ivec2 at = output_place();  // the row, and which four columns of it
    float mean = 0.0, variance = 0.0;
    for (int i = 0; i < X_TEXELS; i++)
        mean += dot(TEXEL(x, at.x * X_TEXELS + i, X_WIDTH, X_HEIGHT), vec4(1.0)) / float(X_COLS);
    for (int i = 0; i < X_TEXELS; i++) {
        vec4 d = trimmed(TEXEL(x, at.x * X_TEXELS + i, X_WIDTH, X_HEIGHT) - mean, i, X_COLS);
        variance += dot(d, d) / float(X_COLS);
    }
    vec4 normal = (TEXEL(x, at.x * X_TEXELS + at.y, X_WIDTH, X_HEIGHT) - mean) / sqrt(variance + eps);
    y = normal * TEXEL(gamma, at.y, GAMMA_WIDTH, GAMMA_HEIGHT) + TEXEL(beta, at.y, BETA_WIDTH, BETA_HEIGHT);
}
"""

MATMUL = """
uniform sampler2D a, b;
out vec4 y;

void main() {
    ivec2 at = output_place();
    vec4 sum = vec4(0.0);
    for (int k = 0; k < A_COLS; k++) {
        float left = TEXEL(a, at.x * A_TEXELS + k / 4, A_WIDTH, A_HEIGHT)[k % 4];
        sum += left * TEXEL(b, k * B_TEXELS + at.y, B_WIDTH, B_HEIGHT);
    }
    y = sum;
}
"""

rng = np.random.default_rng(1)
x, weight = rng.standard_normal((9, 70), dtype=np.float32), rng.standard_normal((70, 50), dtype=np.float32)
gamma, beta = rng.standard_normal((2, 70), dtype=np.float32)

with glinfer.Device() as dev:
    # Inputs are named as their samplers, and uniforms by their own names; the result is an ordinary tensor.
    inputs, w = {"x": dev.tensor(x), "gamma": dev.tensor(gamma), "beta": dev.tensor(beta)}, dev.tensor(weight)
    normed = dev.draw(LAYER_NORM, inputs, x.shape, {"eps": 1e-5}, name="layer_norm")
    product = dev.draw(MATMUL, {"a": normed, "b": w}, (9, 50), name="matmul")

    exact = x.astype(np.float64)
    exact = (exact - exact.mean(1, keepdims=True)) / np.sqrt(exact.var(1, keepdims=True) + 1e-5) * gamma + beta
    print(f"layer_norm: off by at most {np.abs(normed.numpy() - exact).max():.0e}")
    print(f"matmul: off by at most {np.abs(product.numpy() - exact @ weight).max():.0e}")

    # The package's kernels give the same results; explain() names the strategy of a product.
    with dev.ops.layer_norm(*inputs.values()) as same, dev.ops.matmul(same, w) as other:
        print(f"dev.ops: off by at most {np.abs(other.numpy() - product.numpy()).max():.0e}")
    print(f"dev.ops.matmul: {dev.ops.explain(normed, w)}")

    # Draws are counted by kernel, and timed on request.
    dev.timed = True
    with dev.draw(MATMUL, {"a": normed, "b": w}, (9, 50), name="matmul"), dev.ops.matmul(normed, w):
        table = dev.draws
    for row in table.rows:
        spent = table.milliseconds.get(row.kind)
        print(f"{row.kind:15} {row.count} draws{'' if spent is None else f', one of them took {spent:.2f} ms'}")

    # An error is one line: its position, and the driver's message.
    try:
        dev.draw(MATMUL.replace("sum +=", "sun +="), {"a": normed, "b": w}, (9, 50), name="matmul")
    except glinfer.GlinferError as error:
        print(error)

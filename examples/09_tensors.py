"""Use the kernels by themselves: arrays on the GPU, a product, a packed table, and the memory that they use."""

import numpy as np

import glinfer

rng = np.random.default_rng(1)
x, y = rng.standard_normal((64, 300), dtype=np.float32), rng.standard_normal((300, 200), dtype=np.float32)
embeddings = rng.standard_normal((5000, 256), dtype=np.float32)
ids = [3, 1, 4, 1, 5]

with glinfer.Device() as dev:
    print(dev.description)

    # tensor() copies an array, the first use uploads it, and numpy() reads it back.
    a, b = dev.tensor(x), dev.tensor(y)
    product = dev.ops.matmul(a, b)
    error = np.abs(product.numpy() - x.astype(np.float64) @ y).max()
    print(f"matmul: {a.shape} @ {b.shape} is {product.shape}, off by at most {error:.0e}")

    # Operators are kernels too; the other operand may be an array or a number.
    with (a @ b - y[0]) / 2 as halved, halved[1:3].T as part:
        error = np.abs(halved.numpy() - (x @ y - y[0]) / 2).max()
        print(f"operators: {halved.shape}, of which {part.shape}, off by at most {error:.0e}")

    # A with block releases the tensors made in it. Kernels take the results of kernels, which stay on the GPU.
    before = dev.draws_issued
    with dev.ops.layer_norm(product) as normed, dev.ops.softmax(normed) as probs:
        print(f"softmax: rows add up to {probs.numpy().sum(axis=1).round(6).max()}, {dev.draws_issued - before} draws")

    # Rows and slices are assigned in place, in the texture; results may be half floats.
    canvas = dev.zeros((4, 300))
    canvas[1] = x[0]
    canvas[2:, ::2] = 1.5
    with dev.ops.scale(canvas, 2.0, dtype="float16") as halves:
        print(f"assignment: {canvas.numpy().any(axis=1)}, doubled as {halves.dtype} in {halves.nbytes:,} bytes")
    canvas.release()

    # A table of weights may stay packed; the shader unpacks it. GGUF's formats work too: dtype="Q4_K".
    plain, packed = dev.tensor(embeddings), dev.tensor(embeddings, dtype="Q8_ROW")
    rows = dev.ops.lookup(dev.tensor(ids), packed)
    error = np.abs(rows.numpy() - embeddings[ids]).max()
    print(f"lookup: {rows.shape} from {packed.nbytes / plain.nbytes:.0%} of the bytes, off by at most {error:.2f}")

    # Textures are freed with the last reference to a tensor and its views, or by release().
    view = rows.reshape(-1, 64)
    print(f"reshape: {rows.shape} seen as {view.shape}")
    memory = dev.memory()
    print(f"memory: {memory.tensors} tensors, {memory.textures} in textures, {memory.bytes:,} bytes")
    del a, b, product, packed, rows, view
    print(f"and at the end: {dev.memory()}")  # `plain` was never used, so it takes no texture

"""Look inside a model: capture tensors by name, change one, and see the effect.

    python examples/11_look_inside.py [model]

The names are those of glinfer.program.capture.names, the same in every plan that has them.
"""

import sys

import numpy as np
import numpy.typing as npt

import glinfer

PROMPT = "ROMEO: But, soft! what light"

with glinfer.load(sys.argv[1] if len(sys.argv) > 1 else "shakespeare", plan="reference") as model:
    words = model.require_tokenizer()
    ids = words.encode(PROMPT)
    found = model.capture(["blocks.*.attn.probs", "blocks.*.resid_post"], ids)

    # Which head looks back at the token before its own?
    scores = {
        (name, head): probs[head].diagonal(offset=-1).mean()
        for name, probs in found.items()
        if name.endswith("probs")
        for head in range(len(probs))
    }
    (name, head), share = max(scores.items(), key=lambda each: each[1])
    print(f"{name}, head {head}, spends {share:.0%} of its attention on the token before")

    # Without that head the next token's probabilities change.
    def silence(seen: glinfer.Seen) -> npt.NDArray[np.float32]:
        row = head - seen.head  # some plans compute one head after the other
        if 0 <= row < len(seen.array):
            seen.array[row] = 0
        return seen.array

    before = model.probs(ids)
    with model.patch(name, silence):
        after = model.probs(ids)
    likeliest = np.argsort(-before)[:5]
    print(f"after {PROMPT!r}:")
    for token in likeliest:
        print(f"  {words.decode([int(token)])!r:10} {before[token]:6.1%} → {after[token]:6.1%}")
    assert np.array_equal(model.probs(ids), before)  # the patched tensor is restored, bit for bit

    # The same during generation, token by token.
    norms: list[float] = []
    with model.watch("blocks.0.resid_post", lambda seen: norms.append(float(np.linalg.norm(seen.array[-1])))):
        text = model.generate(PROMPT, max_tokens=8, temperature=0)
    print(f"{text!r}: the stream after block 0 has a norm of {min(norms):.2f} to {max(norms):.2f}")

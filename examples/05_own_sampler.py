"""Work with token ids and logits directly: the three likeliest next tokens, and a sampler of one's own."""

import sys

import numpy as np

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

with glinfer.load(MODEL) as model:
    ids = model.require_tokenizer().encode("ROMEO:")
    probs = model.probs(ids)
    for token in np.argsort(-probs)[:3]:
        print(f"{token:5} {model.require_tokenizer().token_bytes(int(token))!r}: {probs[token]:.4f}")
    for _ in range(5):
        ids.append(int(np.argmax(model.logits(ids))))  # only the newest token is run: the rest is held already
    print(model.require_tokenizer().decode(ids))

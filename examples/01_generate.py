"""Stream text from a model, then see what it cost."""

import sys

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model

with glinfer.load(MODEL) as model:
    stream = model.stream("ROMEO:", max_tokens=30, temperature=0.8, seed=1)
    for piece in stream:
        print(piece, end="", flush=True)
    print()
    stats = stream.stats
    print(f"{stats.draws_per_token:g} draws/token, {stats.tokens} tokens, stopped by {stats.finish_reason}")
    print(f"{stats.tokens_per_second:.0f} tok/s")
    print(model.device.description)

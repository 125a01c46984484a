"""Run Gab: stream text from a model, then see what it cost.

python examples/01_generate.py [model.gab]
"""

import sys

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or the bundled model of Gab's architecture

with glinfer.load(MODEL) as model:
    stream = model.stream("ROMEO:", max_tokens=30, temperature=0.8, seed=1)
    for piece in stream:
        print(piece, end="", flush=True)
    stats = stream.stats
    print(f"\n{stats.draws_per_token:g} draws/token, {stats.tokens} tokens, stopped by {stats.finish_reason}")
    print(f"{stats.tokens_per_second:.0f} tok/s on {model.device.description}")

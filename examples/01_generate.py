"""Stream text from a model, then see what it cost."""

from small_model import model_path

import glinfer

with glinfer.load(model_path()) as model:
    stream = model.stream("Once upon a time", max_tokens=20, temperature=0.8, top_k=40, seed=1)
    for piece in stream:
        print(piece, end="", flush=True)
    print()
    stats = stream.stats
    print(f"{stats.draws_per_token:g} draws/token, {stats.tokens} tokens, stopped by {stats.finish_reason}")
    print(model.device.description)

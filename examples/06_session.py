"""Hold a sequence of tokens: read a prompt once, branch from it, rewind, and continue."""

import sys

import numpy as np

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model


def likeliest_next(session: glinfer.Session) -> np.intp:
    """Append the most likely token, and return it; glinfer's types annotate arguments and results."""
    token = session.logits().argmax()
    session.step(token)
    return token


with glinfer.load(MODEL) as model, model.session() as session:
    words = model.require_tokenizer()
    session.prefill(words.encode("KING RICHARD:\nMy lord, "))
    prompt = len(session)

    # Two continuations of the same text. A fork shares the weights and copies the cache.
    with session.fork() as other:
        likeliest = session.generate_ids(12)
        drawn = other.generate_ids(12, glinfer.Sampler(glinfer.SamplingOptions(temperature=0.8, seed=3)))
        print("likeliest:", repr(words.decode(likeliest)))
        print("drawn:    ", repr(words.decode(drawn)))

    # Back to the prompt, and on with other words: only the new tokens are run.
    session.rewind(len(session) - prompt)
    before = session.draws_issued
    session.prefill(words.encode("Gaunt"))
    next_token = likeliest_next(session)
    print(f"after 'Gaunt': {words.token_bytes(int(next_token))!r}, {session.draws_issued - before} draws")
    probability = session.probs().max()
    print(f"{len(session)} tokens held, {session.dropped} dropped, probability {probability:.3f} for the next")

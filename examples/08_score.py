"""Score texts: their probability under the model, token by token, many texts at once."""

import math
import sys

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model
TEXTS = [
    "To be, or not to be: that is the question",
    "Question the is that: be to not or, be To",
    "The quarterly figures exceeded expectations",
]

with glinfer.load(MODEL) as model:
    words = model.require_tokenizer()
    scores = model.score(TEXTS)
    for text, score in zip(TEXTS, scores, strict=True):
        bits = -score.total / math.log(2)
        print(f"{bits / len(text.encode()):5.2f} bits/byte, perplexity {score.perplexity:6.1f} per token  {text!r}")

    first = scores[0]
    print("\nthe first text, token by token:")
    for token, logprob, guess in zip(first.ids[1:], first.logprobs, first.likeliest, strict=True):
        wanted, guessed = (words.token_bytes(int(each)).decode("utf-8", "replace") for each in (token, guess))
        print(f"{logprob:7.2f}  {wanted!r:12} {'' if token == guess else f'the model would say {guessed!r}'}")

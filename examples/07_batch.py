"""Continue many prompts together, and check that each gives the same text as alone."""

import sys

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model
PROMPTS = ["ROMEO:\n", "KING RICHARD:\nMy lord", "First Citizen:\nBefore we", "JULIET:\nO", "And then"]

with glinfer.load(MODEL) as model:
    # The simple way: one list in, one list out.
    together = model.generate(PROMPTS, max_tokens=16, seed=1)
    alone = [model.generate(prompt, max_tokens=16, seed=1) for prompt in PROMPTS]
    for prompt, text in zip(PROMPTS, together, strict=True):
        print(repr(prompt), "->", repr(text))
    print("each as it is alone:", together == alone)

    # Each with its own options, and results as soon as they are finished; two run at a time.
    requests = [
        glinfer.BatchRequest(prompt, {"max_tokens": 8 + 8 * index, "temperature": 0, "stop": ["\n\n"]}, key=index)
        for index, prompt in enumerate(PROMPTS)
    ]
    for result in model.batch(requests, slots=2):
        print(f"prompt {result.request.key}: {result.stats.tokens} tokens, ended by {result.stats.finish_reason}")

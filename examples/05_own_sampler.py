"""A custom sampler: temperature and top-p in NumPy, on the logits of a session."""

import sys

import numpy as np
import numpy.typing as npt

import glinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "shakespeare"  # a file, or a bundled model


def sample(
    logits: npt.NDArray[np.float32], rng: np.random.Generator, temperature: float = 0.8, top_p: float = 0.9
) -> int:
    """Draw a token id from logits [vocab], among the fewest tokens whose probabilities sum to top_p."""
    scores = logits.astype(np.float64) / temperature
    probs = np.exp(scores - scores.max())
    probs /= probs.sum()
    order = np.argsort(-probs)
    kept = order[: np.searchsorted(np.cumsum(probs[order]), top_p) + 1]
    return int(rng.choice(kept, p=probs[kept] / probs[kept].sum()))


rng = np.random.default_rng(1)
with glinfer.load(MODEL) as model, model.session() as session:
    session.prefill("ROMEO:")
    prompt = len(session)
    for _ in range(40):
        session.step(sample(session.logits(), rng))
    print(f"ROMEO:{model.require_tokenizer().decode(session.ids[prompt:])}")

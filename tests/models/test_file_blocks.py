"""Matrices in the formats of files: tokens, prompts, batches, scores and every draw of all plans over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from agreement import agree
from bound_engines import bound_engine
from made_models import IDS, OF_RANGE, fresh, mixed, of_family, opened, packed, worst
from tiny_models import unpacked

from glinfer.engine.model import Model
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.gl.context import Limits, open_device
from glinfer.inspect.verify.draws import verify_draws
from glinfer.kernels.options import KernelOptions
from glinfer.lower.feed import runs
from glinfer.lower.plans import plan_for, weights_for
from glinfer.program.oracle import final_tensors

pytestmark = pytest.mark.gl

PLANS = ("fast", "reference")


def check(made: Checkpoint, plans: Sequence[str] = ("fast",)) -> None:
    """Logits are those of the same numbers as floats, by steps and in a chunk, and so are scores."""
    texts = [IDS[:40], IDS[60:100]]
    with opened(unpacked(made)) as model:
        expected = [model.logits(IDS[:count]) for count in (1, 2, 40)]
        scores = [score.logprobs for score in model.score(texts)]
    for plan in plans:
        with opened(made, plan) as model:
            for count, logits in zip((1, 2, 40), expected, strict=True):
                assert worst(model.logits(IDS[:count]), logits) <= OF_RANGE, (plan, count)
            if plan == "fast":
                check_rows(model)
                for score, logprobs in zip(model.score(texts), scores, strict=True):
                    assert np.abs(score.logprobs - logprobs).max() <= OF_RANGE * np.ptp(expected[-1])


def check_rows(model: Model) -> None:
    """A token has the same bits in a chunk as by itself, and scores are its logarithms."""
    (score,) = model.score([IDS[:12]])
    with model.session() as session:
        for place, token in enumerate(IDS[:12]):
            session.step(token)
            logits = session.logits()
            if place < 11:
                wide = logits.astype(np.float64)
                logprob = wide[IDS[place + 1]] - wide.max() - np.log(np.exp(wide - wide.max()).sum())
                assert score.logprobs[place] == pytest.approx(logprob, rel=2e-6, abs=1e-6)
                assert score.likeliest[place] == logits.argmax()
        assert agree(fresh(model, IDS[:12]), logits)


def test_a_run_over_blocks_of_a_file_agrees_with_float64() -> None:
    """Query, key and value, gate and up, the layers among each other in several formats; some of them floats."""
    made = mixed("llama")
    plan = plan_for(made.config, "fast", weights="file", formats=made.formats())
    weights = weights_for(made, "fast", "file")
    caches: dict[str, np.ndarray] = {}
    expected = [final_tensors(plan, weights, *given, caches)["logits"][0] for given in runs(plan, IDS[:3])]
    with opened(made) as model, model.session() as session:
        for token, logits in zip(IDS[:3], expected, strict=True):
            session.step(token)
            assert worst(session.logits(), logits) <= OF_RANGE


# Each format has shaders of its own, which tests/gl compiles and checks for every one.
@pytest.mark.slow
@pytest.mark.parametrize("form", ["BF16", "Q8_ROW", "IQ4_NL"])
def test_blocks_are_the_numbers_that_they_stand_for(form: str) -> None:
    check(packed(of_family("llama"), lambda name: form), PLANS if form == "BF16" else ("fast",))


@pytest.mark.slow
@pytest.mark.parametrize(("family", "form"), [("gpt2", "F16"), ("gemma", "Q4_1")])
def test_blocks_of_every_family(family: str, form: str) -> None:
    check(packed(of_family(family), lambda name: form), PLANS)


@pytest.mark.slow
def test_blocks_of_256_are_too() -> None:
    """Blocks of random bits, which are large numbers: down to the size of weights by the norms in front of them."""
    check(packed(of_family("llama", 256), lambda name: "Q4_K"))


@pytest.mark.slow
def test_heads_that_are_embeddings() -> None:
    """Whose matrix is in one texture then, read by rows and as a product."""
    made = packed(of_family("llama", tie_word_embeddings=True), lambda name: "Q8_0")
    check(made)
    with opened(made) as model:
        assert "wte" not in model.plan.table


# Every draw against its oracle

KERNELS = {
    "plain": KernelOptions(),
    "many targets": KernelOptions(
        rows_per_draw=8, blends=True, lookup_texture=True, mantissa=True, product_table="llvmpipe"
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kernels"), [("mistral", "plain"), ("gpt2", "many targets")])
def test_every_draw_agrees_with_its_oracle(family: str, kernels: str) -> None:
    """Of both plans; heads padded, and not."""
    odd = {"head_dim": 6, "hidden_size": 60, "sliding_window": 5} if family == "mistral" else {}
    config = dataclasses.replace(of_family(family).config, vocab_size=37, **odd)
    made = packed(random_checkpoint(config, scale=0.2), lambda name: "Q8_0" if family == "gpt2" else "")
    shaped, ids = KERNELS[kernels], [token % 37 for token in IDS[:12]]
    with open_device(limits=Limits(512, 8, 16, 16384, 64.0)) as device:
        for name in ("fast", "reference"):
            with bound_engine(made, device, name, kernels=shaped) as engine:
                checks = verify_draws(engine, ids)
                assert len(checks) == len(engine.plan.draws) + 3 * (name == "fast")
            assert [each for each in checks if not each.passed] == [], name

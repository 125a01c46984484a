"""Matrices in the formats of files: tokens, prompts, batches, scores and every draw of all plans over them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pytest
from agreement import agree
from bound_engines import bound_engine
from made_models import IDS, OF_RANGE, fresh, mixed, of_family, opened, packed, unpacked, worst
from tiers import tiered

from glinfer.engine.model import Model
from glinfer.formats import Checkpoint, random_checkpoint
from glinfer.formats.packed import block_weights
from glinfer.gl.context import Limits, open_device
from glinfer.inspect.verify.draws import verify_draws
from glinfer.ops.kernels import KernelOptions

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


# Each format has shaders of its own, which tests/gl compiles and checks for every one.
@tiered(
    "form", ["Q4_1", "BF16", "Q8_0", "F16", "Q4_0", "Q5_0", "Q5_1", "Q8_ROW", "Q16_ROW", "IQ4_NL", "MXFP4"], keep=(2,)
)
def test_blocks_are_the_numbers_that_they_stand_for(form: str) -> None:
    check(packed(of_family("llama"), lambda name: form), PLANS if form == "BF16" else ("fast",))


@tiered("family", ["gemma", "gpt2", "qwen3", "mistral", "qwen2"], keep=0)
@pytest.mark.parametrize("form", ["Q8_0", "F16"])
def test_blocks_of_every_family(family: str, form: str) -> None:
    check(packed(of_family(family), lambda name: form), PLANS)


@pytest.mark.slow
@tiered("form", ["Q4_K", "Q2_K", "Q3_K", "Q5_K", "Q6_K", "IQ4_XS", "IQ2_XS"])
def test_blocks_of_256_are_too(form: str) -> None:
    """Blocks of random bits, which are large numbers: down to the size of weights by the norms in front of them."""
    check(packed(of_family("llama", 256), lambda name: form))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_every_matrix_in_a_format_of_its_own(family: str) -> None:
    """Query, key and value, gate and up, the layers among each other; some of them floats."""
    check(mixed(family))


@pytest.mark.slow
@tiered(
    ("pattern", "form"),
    [("v_proj", "Q8_0"), ("v_proj", "Q6_K"), ("up_proj", "F16"), ("embed_tokens", ""), ("embed_tokens", "Q6_K")],
)
def test_one_matrix_in_another_format_than_the_rest(pattern: str, form: str) -> None:
    width, rest = (256, "Q4_K") if form and block_weights(form) == 256 else (64, "Q4_0")
    check(packed(of_family("llama", width), lambda name: form if pattern in name else rest))


@pytest.mark.slow
@tiered("tied", [True, False])
def test_heads_that_are_embeddings(tied: bool) -> None:
    """Whose matrix is in one texture then, read by rows and as a product."""
    made = packed(of_family("llama", tie_word_embeddings=tied), lambda name: "Q8_0")
    check(made)
    with opened(made) as model:
        assert ("wte" in model.plan.table) is not tied


@pytest.mark.slow
def test_a_packed_gpt2_of_any_context() -> None:
    """Whose learned positions end within a chunk of the prompt."""
    for context in (1, 40):
        made = packed(of_family("gpt2", max_position_embeddings=context), lambda name: "Q8_0")
        with opened(made) as model, model.session() as stepped:
            for token in IDS[:context]:
                stepped.step(token)
            assert agree(fresh(model, IDS[:context]), stepped.logits())
            stepped.rewind(max(0, context - 10))
            assert agree(fresh(model, IDS[: len(stepped)]), stepped.logits())


@pytest.mark.slow
def test_blocks_can_be_kept_otherwise() -> None:
    made = packed(of_family("llama"), lambda name: "Q4_0")
    with opened(unpacked(made)) as model:
        expected = model.logits(IDS[:9])
    for weights, tolerance in (("f32", OF_RANGE), ("q8", 0.05)):
        with opened(made, weights=weights) as model:
            assert model.weights == weights
            assert worst(model.logits(IDS[:9]), expected) <= tolerance, weights


# Every draw against its oracle

KERNELS = {
    "plain": KernelOptions(),
    "many targets": KernelOptions(
        rows_per_draw=8, blends=True, lookup_texture=True, mantissa=True, product_table="llvmpipe"
    ),
}


@tiered(
    ("family", "kernels"),
    [
        ("mistral", "plain"),
        ("qwen3", "many targets"),
        ("gift_of_gab", "plain"),
        ("gpt2", "many targets"),
        *((family, kernels) for family in ("llama", "gemma") for kernels in KERNELS),
    ],
    keep=0,
)
def test_every_draw_agrees_with_its_oracle(family: str, kernels: str) -> None:
    """Of both plans; heads padded, and not. Other fast plans give their bits, see above and test_batch.py."""
    odd = family in ("mistral", "gift_of_gab")
    config = dataclasses.replace(
        of_family(family).config,
        head_dim=6 if odd else 16,
        hidden_size=60 if odd else 64,
        num_hidden_layers=2,
        vocab_size=37,
        sliding_window=5 if family == "mistral" else 0,
        attention_bias=family == "llama",
        mlp_bias=family in ("llama", "gift_of_gab"),
    )
    form = "Q8_0" if family in ("llama", "gpt2") else "BF16" if family == "gemma" else ""
    made = packed(random_checkpoint(config, scale=0.2), lambda name: form)
    shaped, ids = KERNELS[kernels], [token % 37 for token in IDS[:12]]
    with open_device(limits=Limits(512, 8, 16, 16384, 64.0)) as device:
        for name in ("fast", "reference"):
            for count in (12, 9):
                with bound_engine(made, device, name, kernels=shaped) as engine:
                    checks = verify_draws(engine, ids[:count])
                    assert len(checks) == len(engine.plan.draws) + (name == "fast")
                assert [each for each in checks if not each.passed] == [], (name, count)

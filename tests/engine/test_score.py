"""``Model.score``: log-probabilities of whole texts, against the logits of one token after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import IDS, mixed, of_family, opened
from scripted_models import random_file
from tiers import tiered

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.score import SLOT_ALIGNMENT, TextScore, TextScorer, windows
from glinfer.errors import ContextError, InputError
from glinfer.gl.context import Limits
from glinfer.inspect.evaluate import log_likelihoods
from glinfer.models.options import PlanOptions
from glinfer.models.session import Session

pytestmark = pytest.mark.gl

CONTEXT = 64
RELATIVE = 2e-6


@pytest.fixture
def model(small: Path) -> Iterator[Model]:
    """2 blocks, 4 heads, 300 tokens, a context of 64."""
    with glinfer.load(small) as opened:
        yield opened


def with_chunk(path: Path | str, chunk: int, **kernels: Any) -> Model:
    with glinfer.load(path) as opened:
        shaped = replace(opened.kernels, chunk=chunk, **kernels)
    return glinfer.load(path, kernels=shaped)


def ids_of(count: int, seed: int = 1, vocab: int = 300) -> list[int]:
    found: list[int] = np.random.default_rng(seed).integers(0, vocab, count).tolist()
    return found


def stepped(model: Model, ids: Sequence[int], stride: int | None = None) -> TextScore:
    """The same by the fast plan alone: the logits of every token of every window, softmax in float64."""
    context = model.config.max_position_embeddings
    found = TextScore.unknown(ids)
    for start, stop, scored in windows(len(ids), context, context // 2 if stride is None else stride):
        with model.session() as session:
            for place in range(start, stop):
                session.step(ids[place])
                if place + 1 >= scored:
                    logits = session.logits()
                    found.logprobs[place] = log_likelihoods(logits[None], [ids[place + 1]])[0]
                    found.likeliest[place] = logits.argmax()
                    found.best[place] = log_likelihoods(logits[None], [int(logits.argmax())])[0]
    return found


def assert_agree(found: TextScore, expected: TextScore, absolute: float = 0.0) -> None:
    assert found.ids == expected.ids
    assert (found.logprobs.dtype, found.logprobs.shape) == (np.float64, (len(expected.ids) - 1,))
    np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=RELATIVE, atol=absolute)
    assert found.likeliest.tolist() == expected.likeliest.tolist()


def assert_same_bits(found: TextScore, expected: TextScore) -> None:
    assert found.ids == expected.ids
    assert np.array_equal(found.logprobs, expected.logprobs)
    assert np.array_equal(found.likeliest, expected.likeliest)


def check(model: Model) -> None:
    """Several texts at once, one of them over several windows, as token by token."""
    texts = [IDS[:17], IDS[20:140], IDS[3:9]]
    for found, ids in zip(model.score(texts), texts, strict=True):
        assert_agree(found, stepped(model, ids), absolute=1e-6)


class TestNumbers:
    def test_of_a_text_within_the_context(self, model: Model) -> None:
        for count in (2, 3, 16, 17, 40, CONTEXT, CONTEXT + 1):
            ids = ids_of(count, count)
            (found,) = model.score([ids])
            assert_agree(found, stepped(model, ids))

    def test_of_text(self, model: Model) -> None:
        text = "Once upon a time there was"
        (found,) = model.score([text])
        assert found.ids == model.require_tokenizer().encode(text)
        assert_same_bits(found, model.score([found.ids])[0])
        assert_agree(found, stepped(model, found.ids))

    def test_total_and_perplexity(self, model: Model) -> None:
        ids = ids_of(20)
        (found,) = model.score([ids])
        expected = stepped(model, ids).logprobs
        assert found.total == pytest.approx(math.fsum(expected), rel=RELATIVE)
        assert found.perplexity == pytest.approx(math.exp(-math.fsum(expected) / 19), rel=1e-5)
        by_hand = TextScore([1, 2, 3], np.log([0.5, 0.125]), np.array([2, 2]), np.log([0.5, 0.25]))
        assert by_hand.total == pytest.approx(-4 * math.log(2))
        assert by_hand.perplexity == pytest.approx(4)

    @tiered(("count", "stride"), [(CONTEXT + 2, None), (150, None), (150, CONTEXT), (120, 11)], keep=(1,))
    def test_of_a_text_longer_than_the_context(self, model: Model, count: int, stride: int | None) -> None:
        ids = ids_of(count, 2)
        (found,) = model.score([ids], stride=stride)
        assert_agree(found, stepped(model, ids, stride))

    @pytest.mark.slow
    def test_a_stride_of_one(self, tmp_path: Path) -> None:
        path = random_file(tmp_path / "tiny.gab", "vocab=50,dim=24,heads=2,blocks=2,context=8", seed=4)
        with glinfer.load(path) as model:
            ids = ids_of(40, 3, 50)
            assert_agree(model.score([ids], stride=1)[0], stepped(model, ids, 1))

    @pytest.mark.slow
    @tiered("options", ["vocab=1,dim=1,heads=1,blocks=1,context=1", "vocab=131,dim=30,heads=3,blocks=1,context=9"])
    def test_of_other_shapes(self, tmp_path: Path, options: str) -> None:
        with glinfer.load(random_file(tmp_path / "other.gab", options, seed=2)) as model:
            for count in (2, 3, 10, 25):
                ids = ids_of(count, count, model.config.vocab_size)
                found = model.score([ids])[0]
                expected = stepped(model, ids, max(1, model.config.max_position_embeddings // 2))
                np.testing.assert_allclose(found.logprobs, expected.logprobs, rtol=RELATIVE, atol=1e-12)
                assert found.likeliest.tolist() == expected.likeliest.tolist()

    @tiered("weights", ["f16", "q8", "q8l"], keep=(1,))
    def test_in_other_weight_formats(self, small: Path, weights: str) -> None:
        with glinfer.load(small, weights=weights) as model:
            ids = ids_of(30)
            assert_agree(model.score([ids])[0], stepped(model, ids))

    @tiered("family", ["mistral", "qwen3", "gemma", "gift_of_gab", "gpt2"], keep=0)
    def test_of_every_family(self, family: str) -> None:
        """Within the context of 48 tokens, and longer; one window of attention is shorter than it."""
        with opened(of_family(family, sliding_window=7 if family == "mistral" else 0)) as model:
            check(model)

    @tiered("family", ["llama", "gpt2"], keep=0)
    def test_over_blocks_of_files(self, family: str) -> None:
        with opened(mixed(family)) as model:
            check(model)

    @pytest.mark.slow
    def test_within_the_limits_of_webgl2(self, small: Path) -> None:
        with glinfer.load(small, limits=Limits.webgl2_minimum()) as model:
            for ids in (ids_of(30), ids_of(90)):
                assert_agree(model.score([ids])[0], stepped(model, ids))

    def test_the_bundled_model(self) -> None:
        with glinfer.load("shakespeare") as model:
            (likely, unlikely) = model.score(["ROMEO:\nBut soft, what light", "ROMEO:\nBut light soft, what"])
            assert likely.total > unlikely.total
            # That of a nearly certain token is a small difference of large float32 numbers.
            assert_agree(likely, stepped(model, likely.ids), absolute=5e-7)


class TestRuns:
    @tiered("chunk", [1, 24, 512], keep=0)
    def test_short_texts_together_are_what_they_are_alone(self, small: Path, chunk: int) -> None:
        texts = [ids_of(2 + place * 7 % 23, place) for place in range(20)]
        with with_chunk(small, chunk) as model:
            for found, ids in zip(model.score(texts), texts, strict=True):
                assert_same_bits(found, model.score([ids])[0])

    @pytest.mark.slow
    def test_they_are_the_same_whatever_the_chunks(self, small: Path) -> None:
        texts = [ids_of(count, count) for count in (2, 5, 16, 17, 18, 33, 60, CONTEXT, CONTEXT + 1, 140)]
        with glinfer.load(small) as model:
            expected = model.score(texts)
        for chunk in (1, 16, 31):
            with with_chunk(small, chunk) as model:
                for found, other in zip(model.score(texts), expected, strict=True):
                    assert_same_bits(found, other)

    @tiered(
        "kernels",
        [
            {"rows_per_draw": 4, "blends": False, "largest_cell": 1},
            {"rows_per_draw": 1},
            {"rows_per_draw": 2, "blends": True, "cover": "quads"},
            {"quad": False},
        ],
        ids=str,
        keep=0,
    )
    def test_with_other_kernels(self, small: Path, kernels: dict[str, Any]) -> None:
        texts = [ids_of(count, count) for count in (2, 9, 16, 17, 64)]
        with with_chunk(small, 40, **kernels) as model:
            for found, ids in zip(model.score(texts), texts, strict=True):
                assert_agree(found, stepped(model, ids))

    @tiered(
        ("counts", "runs"),
        [
            ([17], [16]),  # the last token is only predicted
            ([18], [16, 1]),
            ([33], [16, 16]),
            ([2, 2, 2, 2], [1, 1, 1, 1]),  # the second would begin at 16
            ([17, 17, 2], [16, 16, 1]),
            ([50, 2, 40], [16, 16, 16, 1, 1, 16, 16, 7]),
        ],
        keep=(5,),
    )
    def test_texts_of_exactly_a_chunk_and_around_it(
        self, small: Path, monkeypatch: pytest.MonkeyPatch, counts: list[int], runs: list[int]
    ) -> None:
        rows: list[int] = []
        run = Session.run

        def spy(self: Session, values: Any, **options: Any) -> int:
            if self.plan.name == "score":
                rows.append(values["rows"])
            return run(self, values, **options)

        texts = [ids_of(count, place) for place, count in enumerate(counts)]
        with with_chunk(small, SLOT_ALIGNMENT) as model:
            monkeypatch.setattr(Session, "run", spy)
            found = model.score(texts)
            assert rows == runs
            for one, ids in zip(found, texts, strict=True):
                assert_agree(one, stepped(model, ids))

    def test_many_short_ones_are_one_run(self, small: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rows: list[int] = []
        run = Session.run

        def spy(self: Session, values: Any, **options: Any) -> int:
            rows.append(values["rows"])
            return run(self, values, **options)

        monkeypatch.setattr(Session, "run", spy)
        with glinfer.load(small) as model:
            assert min(model.kernels.chunk, CONTEXT) == 64
            model.score([ids_of(10, place) for place in range(9)])
        assert rows == [57, 57, 9], "four texts of nine rows each, beginning at multiples of 16"

    def test_what_one_call_left_does_not_reach_the_next(self, model: Model) -> None:
        first = [ids_of(50, 1), ids_of(3, 2)]
        expected = model.score(first)
        model.score([ids_of(64, 3), ids_of(200, 4)])
        for found, other in zip(model.score(first), expected, strict=True):
            assert_same_bits(found, other)

    def test_it_leaves_sequences_alone_and_makes_its_plan_once(self, model: Model) -> None:
        ids = ids_of(30, 5)
        logits = model.logits(ids)
        model.score([ids_of(20, 6)])
        alive = model.device.live_objects()
        for _ in range(3):
            model.score([ids_of(20, 7), ids_of(100, 8)])
        assert model.device.live_objects() == alive
        model.logits([1])
        assert np.array_equal(model.logits(ids), logits)


class TestRefusals:
    @tiered(
        ("texts", "words"),
        [
            ([[1]], "text 0 has 1 tokens; expected at least 2, one to predict from another"),
            ([[1, 2], []], "text 1 has 0 tokens; expected at least 2"),
            (["x"], "text 0 has 1 tokens; expected at least 2"),
            (["x" * 9, ""], "text 1 has 0 tokens; expected at least 2"),
            (b"Once upon", "score takes a text or a list of texts, and found bytes"),
            (5, "score takes a text or a list of texts, and found int"),
            ([1, 2, 3], "text 0 is no sequence of whole numbers"),
            ([[1, 2], [3, 300]], "token 1 of text 1 is 300; this vocabulary has ids 0 to 299"),
            ([[1, -1]], "token 1 of text 0 is -1"),
            ([[1, 2.0]], "text 0 is no sequence of whole numbers"),
            ([b"ab"], "text 0 is bytes"),
            ([None], "text 0 is no sequence of whole numbers"),
        ],
        ids=str,
        keep=(0, 4, 8, 11),
    )
    def test_texts(self, model: Model, texts: Any, words: str) -> None:
        draws = model.device.draws_issued
        with pytest.raises(InputError) as refusal:
            model.score(texts)
        assert words in str(refusal.value)
        assert "\n" not in str(refusal.value)
        assert model.device.draws_issued == draws

    @pytest.mark.parametrize("stride", [0, -1, CONTEXT + 1])
    def test_strides(self, model: Model, stride: int) -> None:
        with pytest.raises(InputError, match=f"the stride is {stride}; expected 1 to {CONTEXT}, the context"):
            model.score([[1, 2, 3]], stride=stride)

    @pytest.mark.parametrize("stride", [1.5, "2", True])
    def test_strides_that_are_no_whole_numbers(self, model: Model, stride: Any) -> None:
        with pytest.raises(InputError, match=f"the stride is {stride!r}; expected 1 to {CONTEXT}"):
            model.score([[1, 2, 3]], stride=stride)

    def test_the_reference_plan(self, small: Path) -> None:
        words = "score needs the fast plan; load the model without plan='reference'"
        with glinfer.load(small, plan="reference") as model, pytest.raises(InputError, match=words):
            model.score([[1, 2]])

    def test_text_without_a_tokenizer(self, bare: Path) -> None:
        with glinfer.load(bare) as model:
            with pytest.raises(InputError, match="no tokenizer"):
                model.score(["Once upon"])
            assert len(model.score([[1, 2]])) == 1

    def test_none_at_all(self, model: Model) -> None:
        before = model.device.live_objects()
        assert model.score([]) == []
        assert model.device.live_objects() == before

    def test_arrays_and_tuples_are_texts(self, model: Model) -> None:
        expected = model.score([[1, 2, 3]])[0]
        for texts in ([np.array([1, 2, 3])], ((1, 2, 3),), np.array([[1, 2, 3]])):
            assert_same_bits(model.score(texts)[0], expected)  # type: ignore[arg-type]

    @pytest.mark.filterwarnings("error")
    def test_output_that_is_no_number(self, model: Model) -> None:
        texture = model.bound.texture("lm_head.consts")
        kept = texture.read()
        for broken in (np.nan, np.inf):
            texture.upload(np.full_like(kept, broken))
            with pytest.raises(InputError, match="the model's output is broken") as refusal:
                model.score([[1, 2, 3]])
            assert "\n" not in str(refusal.value)
        texture.upload(kept)
        assert np.isfinite(model.score([[1, 2, 3]])[0].total)

    def test_a_closed_model(self, small: Path) -> None:
        model = glinfer.load(small)
        model.score([[1, 2]])
        model.close()
        with pytest.raises(ContextError, match="this model was closed; load it again"):
            model.score([[1, 2]])

    def test_a_closed_scorer_leaves_nothing(self, model: Model) -> None:
        before = model.device.live_objects()["texture"]
        edge = model.bound.device.limits.max_texture_size
        with TextScorer(PlanOptions(model.config, model.weights, model.kernels, edge), model.bound) as scorer:
            assert scorer.score([[1, 2, 3]])[0].ids == [1, 2, 3]
        scorer.close()
        assert model.device.live_objects()["texture"] == before

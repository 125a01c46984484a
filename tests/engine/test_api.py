"""The Python API as a user meets it: text, ids, streams, closing, several models at once, the short forms."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import of_family, opened
from scripted_models import FAST_SMALL_DRAWS, saying

import glinfer
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_tokenizer
from glinfer.errors import ContextError, InputError, PlanError
from glinfer.formats import save_checkpoint
from glinfer.gl.context import Limits, open_device
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

PROMPT = [13, 132, 251, 70]


class TestGenerating:
    def test_the_whole_sequence_at_once_is_for_the_reference_plan(self, model: Model) -> None:
        with pytest.raises(InputError, match="plan fast runs token by token; use logits"):
            model.forward(PROMPT)
        for tokens in (0, -1, 65):
            with pytest.raises(PlanError, match="expected 1 to 64"):
                model.draws(tokens)


class TestText:
    """Models that say exactly what the test wrote, byte by byte."""

    def test_stop_ids_and_the_end_token(self, tmp_path: Path) -> None:
        """The end token stops text, but not ids unless it is asked for; a stop string may spell it."""
        words = Tokenizer(demo_tokenizer(300))
        end = words.control_tokens["<|end|>"]
        save_checkpoint(saying([*b"yes", end, *b"no<|end|>!"], after=2, vocab=300), tmp_path / "m.gab")
        with glinfer.load(tmp_path / "m.gab", tokenizer=words) as model:
            assert model.generate("zq", max_tokens=6) == "yes"
            assert model.generate("zq", max_tokens=6, stop_ids=[]) == "yes<|end|>no"
            assert model.generate([97, 98], max_tokens=6) == [*b"yes", end, *b"no"]
            assert model.generate("zq", max_tokens=14, stop_ids=[], stop=["no<|end|>"]) == "yes<|end|>"
            assert model.generate("zq", max_tokens=7, stop_ids=[ord("s")]) == "ye"
            assert model.generate([97, 98], max_tokens=7, stop_ids=[np.int64(ord("s"))]) == list(b"ye")


class TestSeveralModels:
    def test_two_models_share_a_device(self, small: Path, llama: Model) -> None:
        alone = llama.logits([1, 2, 3])
        with open_device() as device:
            with glinfer.load(small, device=device) as first, opened(of_family("llama"), device=device) as second:
                assert first.device is second.device is device
                expected = first.logits(PROMPT)
                assert np.array_equal(second.logits([1, 2, 3]), alone)
                assert np.array_equal(first.logits(PROMPT), expected)
                stream = first.stream(PROMPT, max_tokens=2, temperature=0)
                next(stream)
                second.logits([1])
                next(stream)
                assert stream.stats.draws == 2 * FAST_SMALL_DRAWS, "the other model's draws are not counted here"
                first.close()
                assert np.array_equal(second.logits([1, 2, 3]), alone)
            assert not device.closed, "a shared device stays open"
            assert sum(device.live_objects().values()) == 0

    def test_a_shared_device(self, small: Path) -> None:
        device = open_device()
        for options in ({"limits": Limits.webgl2_minimum()}, {"api": "es"}):
            with pytest.raises(InputError, match="leave them out"):
                glinfer.load(small, device=device, **options)  # type: ignore[arg-type]
        model = glinfer.load(small, device=device)
        device.close()
        for use in (lambda: model.logits(PROMPT), lambda: glinfer.load(small, device=device)):
            with pytest.raises(ContextError, match="closed"):
                use()
        model.close()


class TestShortForms:
    @pytest.fixture
    def models(self, monkeypatch: pytest.MonkeyPatch) -> list[Model]:
        """Every model that glinfer.load opens."""
        found: list[Model] = []
        load = glinfer.load
        monkeypatch.setattr(glinfer, "load", lambda *given, **named: found.append(load(*given, **named)) or found[-1])
        return found

    def test_they_load_and_generate_and_close(self, bare: Path, small: Path, models: list[Model]) -> None:
        """Options of loading go to loading."""
        words, how = small.with_suffix(".bpe"), {"max_tokens": 5, "seed": 1}
        with glinfer.load(small) as model:
            expected, ids = model.generate("Once", **how), model.generate(PROMPT, **how)
        assert glinfer.generate(small, PROMPT, **how) == ids
        assert glinfer.generate(bare, "Once", tokenizer=words, limits=None, **how) == expected
        assert "".join(glinfer.stream(bare, "Once", tokenizer=words, gelu="tanh", **how)) == expected
        assert [model.device.closed for model in models] == [True] * 4

    def test_stream_closes_the_model_when_it_is_closed_early(self, small: Path, models: list[Model]) -> None:
        stream = glinfer.stream(small, "Once", max_tokens=30, seed=1)
        next(stream)
        stream.close()
        assert models[0].device.closed
        assert list(stream) == []
        with glinfer.stream(small, PROMPT, max_tokens=30, seed=1) as other:
            next(other)
        assert models[1].device.closed

    def test_stream_closes_the_model_when_the_prompt_is_bad(self, small: Path, models: list[Model]) -> None:
        for bad in ("", [300], 5):
            with pytest.raises(InputError):
                glinfer.stream(small, bad)
        with pytest.raises(TypeError, match="temprature"):
            glinfer.stream(small, "Once", temprature=1)
        assert [model.device.closed for model in models] == [True] * 3, "names of options are checked before loading"


# Prompts and options


def test_prompts_that_cannot_be(model: Model) -> None:
    no_ids: list[Any] = [
        [1.0, 2.0], [1, 2.5], [True, False], [1, "2"], [1, [2]], [b"Once"], [np.True_], np.array([1.0, 2.0]),
        np.array([[1, 2], [3, 4]]), [None], 5, None, object(),
    ]  # fmt: skip
    refused: list[tuple[Any, str]] = [
        *((prompt, "the prompt; expected a sequence of integers") for prompt in no_ids),
        *((prompt, "the prompt is empty") for prompt in ("", [], (), np.array([], dtype=np.int64))),
        *((prompt, "expected text") for prompt in (b"Once", bytearray(b"Once"))),
        ([300], "token 0 of the prompt is 300; .* 0 to 299"),
        ([-1], "token 0 of the prompt is -1; .* 0 to 299"),
        ([5, 299, 10**30], f"token 2 of the prompt is {10**30}; .* 0 to 299"),
        ([1] * 65, "the prompt has 65 tokens; this model's context holds 64; shorten it"),
        ("x " * 500, "this model's context holds 64"),
        ("a\ud800b", "surrogate"),
    ]
    for prompt, words in refused:
        listed = isinstance(prompt, Iterable) and not isinstance(prompt, (str, bytes, bytearray))
        several = listed and all(isinstance(each, Iterable) for each in prompt)  # or none: for generate alone
        for use in (model.stream, model.logits, *(() if several else (model.generate,))):
            with pytest.raises(InputError, match=words):
                use(prompt)


def test_options_that_cannot_be_are_refused_before_anything_runs(model: Model) -> None:
    before = model.bound.runs
    for option, error in (
        ({"temperature": float("nan")}, "temperature"),
        ({"seed": -1}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"stop_ids": [300]}, "token 0 of stop_ids is 300"),
        ({"stop_ids": ["a"]}, "stop_ids; expected a sequence of integers"),
        ({"stop_ids": 5}, "stop_ids; expected a sequence of integers"),
        ({"stop": ""}, "stop string 0 is empty"),
        ({"stop": b"end"}, "stop is bytes"),
    ):
        with pytest.raises(InputError, match=error):
            model.stream("Once", **option)  # type: ignore[call-overload]
    with pytest.raises(InputError, match="use stop_ids"):
        model.stream(PROMPT, stop=["x"])
    assert model.bound.runs == before

"""NaN and infinities in what a model computes: seen where logits are read, traced to the pass where they began."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_models import opened
from scripted_models import SMALL

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.model import Model
from glinfer.engine.requests import BatchRequest
from glinfer.errors import FormatError, GlinferWarning, NumbersError
from glinfer.formats import random_checkpoint, save_checkpoint
from glinfer.lower.plans import WEIGHTS

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
IDS = [3, 100, 7, 7, 55]
GREEDY, DRAWN, FILTERED = {"temperature": 0}, {"seed": 1}, {"seed": 1, "top_k": 5}
LOST = "lm_head.consts"


@contextmanager
def broken(model: Model, name: str, change: Callable[[Array], Array]) -> Iterator[None]:
    """A weight texture changed behind the model's back, as a broken driver or memory would."""
    texture = model.bound.texture(name)
    kept = texture.read()
    texture.upload(np.ascontiguousarray(change(kept.copy())))
    try:
        yield
    finally:
        texture.upload(kept)


def all_nan(array: Array) -> Array:
    return np.full_like(array, np.nan)


def check_traced(model: Model, weight: str, where: str) -> None:
    """The pass where it began is named, and nothing is chosen."""
    plain = model.generate(IDS, max_tokens=3, **GREEDY)
    with broken(model, weight, all_nan):
        for options in (GREEDY, DRAWN, FILTERED):
            with pytest.raises(NumbersError, match=where) as caught:
                model.generate([9, *IDS], max_tokens=3, **options)  # type: ignore[arg-type]
            assert "the model's output is broken" in str(caught.value)
        with pytest.raises(NumbersError, match=where):
            model.logits([8, *IDS])
    assert not model.bound.observers
    with model.session() as session:
        session.prefill(IDS)
        assert session.generate_ids(3) == plain


def test_the_pass_where_it_began_is_named_and_nothing_is_chosen(model: Model, reference: Model, llama: Model) -> None:
    check_traced(model, "h.1.mlp.fc_in.consts", r"NaN began in pass h\.1\.mlp\.fc_in \(shaders/gemm\.frag\), token 0")
    check_traced(reference, "transformer.h.1.ln_2.bias", r"began in pass h\.1\.ln_2 \(.*over 6 tokens")
    check_traced(llama, "h.1.attn.out_proj.consts", r"began in pass h\.1\.attn\.out_proj \(shaders/gemm\.frag\), tok")


def test_batches_and_scores_name_the_pass_too(model: Model) -> None:
    with broken(model, "h.1.mlp.fc_in.consts", all_nan):
        for options in (GREEDY, FILTERED):
            with pytest.raises(NumbersError, match=r"began in pass h\.1\.mlp\.fc_in"):
                list(model.batch([BatchRequest(IDS, {"max_tokens": 2, **options})] * 2))
        with pytest.raises(NumbersError, match=r"began in pass h\.1\.mlp\.fc_in"):
            model.score([IDS])


def seventeenth(value: float) -> Callable[[Array], Array]:
    """Give token 17 such a logit."""

    def change(consts: Array) -> Array:
        consts[17] = value
        return consts

    return change


class TestOneLostLogit:
    """Some logits are no numbers, and others are."""

    def test_is_warned_of_once_and_never_leaves_the_vocabulary(self, model: Model) -> None:
        for value, options in itertools.product((np.nan, np.inf), (GREEDY, DRAWN, FILTERED)):
            model.engine.nan_guard._warned = False
            with broken(model, LOST, seventeenth(value)), warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                first = model.generate(IDS, max_tokens=6, **options)  # type: ignore[arg-type]
                second = model.generate([5, *IDS], max_tokens=6, **options)  # type: ignore[arg-type]
                logits = model.logits([6, *IDS])
            assert not np.isfinite(logits[17])
            assert all(0 <= token < 300 for token in first + second)
            found = [each for each in caught if issubclass(each.category, GlinferWarning)]
            assert len(found) == 1
            assert "began in pass lm_head (shaders/gemm.frag)" in str(found[0].message)
            if np.isnan(value):
                assert 17 not in first + second
            elif options is GREEDY:
                assert set(first + second) == {17}

    def test_is_the_end_where_it_is_strict(self, model: Model) -> None:
        model.engine.nan_guard.strict = True
        with broken(model, LOST, seventeenth(np.inf)):
            for options in (GREEDY, FILTERED):
                with pytest.raises(NumbersError, match=r"\+inf began in pass lm_head"):
                    model.generate(IDS, max_tokens=2, **options)  # type: ignore[arg-type]
            with pytest.raises(NumbersError, match=r"1 \+inf, of 300 logits after 5 tokens"):
                model.logits(IDS)
        with broken(model, LOST, seventeenth(-np.inf)):
            assert model.logits(IDS)[17] == -np.inf, "a token that is never chosen"
            assert 17 not in model.generate(IDS, max_tokens=8, **FILTERED)

    def test_strict_is_an_option_of_loading(self, small: Path) -> None:
        with glinfer.load(small, strict=True) as model:
            assert model.engine.nan_guard.strict


def test_an_overflow_is_traced_to_the_pass_that_overflows() -> None:
    made = random_checkpoint(ModelConfig.from_options(SMALL), seed=3, scale=0.3)
    made.tensors["transformer.h.0.mlp.fc_in.bias"][:] = 100
    made.tensors["transformer.h.0.mlp.fc_out.weight"][:] *= np.float32(1e38)
    with opened(made, "reference") as model:
        model.engine.nan_guard.strict = True
        with pytest.raises(NumbersError, match=r"began in pass h\.0\.mlp\.fc_out"):
            model.logits(IDS)


def test_weights_that_are_no_numbers_are_refused_when_they_are_loaded(tmp_path: Path) -> None:
    made = random_checkpoint(ModelConfig.from_options(SMALL), seed=3)
    made.tensors["transformer.h.0.ln_1.bias"][3] = np.inf
    path = tmp_path / "broken.gab"
    save_checkpoint(made, path)
    for weights in WEIGHTS:
        if weights != "file":
            with pytest.raises(FormatError, match=r"h\.0\.ln_1\.bias"):
                glinfer.load(path, weights=weights)

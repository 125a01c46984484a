"""NaN and infinities in what a model computes: seen where logits are read, traced to the pass where they began."""

from __future__ import annotations

import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tiers import tiered

import glinfer
from glinfer.config import ModelConfig
from glinfer.engine.loading import bind
from glinfer.engine.model import Loaded, Model
from glinfer.engine.requests import BatchRequest
from glinfer.errors import FormatError, GlinferWarning, NumbersError
from glinfer.formats import Checkpoint, random_checkpoint, save_checkpoint
from glinfer.gl.context import open_device
from glinfer.models.choice import WEIGHTS

pytestmark = pytest.mark.gl

Array = np.ndarray[Any, Any]
SHAPES = {
    "gab": "blocks=2,heads=2,dim=20,vocab=101,context=24",
    "llama": "family=llama,blocks=2,heads=4,kv_heads=2,dim=24,inner=28,vocab=101,context=24",
}
IDS = [3, 100, 7, 7, 55]
GREEDY, DRAWN, FILTERED = {"temperature": 0}, {"seed": 1}, {"seed": 1, "top_k": 5}


def checkpoint(family: str = "gab") -> Checkpoint:
    return random_checkpoint(ModelConfig.from_options(SHAPES[family]), seed=3, scale=0.3)


@contextmanager
def opened(made: Checkpoint, plan: str = "fast", *, strict: bool = False) -> Iterator[Model]:
    with (
        open_device() as device,
        Model(Loaded(bind(made, device, plan), None, "there is none", (), False), strict=strict) as model,
    ):
        yield model


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


WHERE = {
    ("gab", "fast"): ("h.1.mlp.fc_in.consts", r"NaN began in pass h\.1\.mlp\.fc_in \(shaders/gemv\.frag\), token 0"),
    ("gab", "reference"): (
        "transformer.h.1.ln_2.bias",
        r"began in pass h\.1\.ln_2 \(.*over 6 tokens",
    ),
    ("llama", "fast"): (
        "h.1.attn.out_proj.consts",
        r"began in pass h\.1\.attn\.out_proj \(shaders/gemv\.frag\), token 0",
    ),
    ("llama", "reference"): (
        "model.layers.0.input_layernorm.weight",
        r"began in pass h\.0\.attn\.norm \(.*over 6 tokens",
    ),
}


@tiered(("family", "plan"), WHERE, keep=2)
def test_the_pass_where_it_began_is_named_and_nothing_is_chosen(family: str, plan: str) -> None:
    weight, where = WHERE[family, plan]
    with opened(checkpoint(family), plan) as model:
        plain = model.generate(IDS, max_tokens=3, **GREEDY)
        with broken(model, weight, all_nan):
            for options in (GREEDY, DRAWN, FILTERED):
                with model.session() as session, pytest.raises(NumbersError, match=where) as caught:
                    model.generate([9, *IDS], max_tokens=3, **options)  # type: ignore[arg-type]
                assert "\n" not in str(caught.value)
                assert "the model's output is broken" in str(caught.value)
                session.close()
            with pytest.raises(NumbersError, match=where):
                model.logits([8, *IDS])
        assert not model.bound.observers
        with model.session() as session:
            session.prefill(IDS)
            assert session.generate_ids(3) == plain


@tiered("family", SHAPES, keep=(0,))
def test_batches_and_scores_name_the_pass_too(family: str) -> None:
    with opened(checkpoint(family)) as model, broken(model, "h.1.mlp.fc_in.consts", all_nan):
        for options in (GREEDY, FILTERED):
            with pytest.raises(NumbersError, match=r"began in pass h\.1\.mlp\.fc_in"):
                list(model.batch([BatchRequest(IDS, {"max_tokens": 2, **options})] * 2))
        with pytest.raises(NumbersError, match=r"began in pass h\.1\.mlp\.fc_in"):
            model.score([IDS])


class TestOneLostLogit:
    """Some logits are no numbers, and others are."""

    @pytest.fixture
    def model(self) -> Iterator[Model]:
        with opened(checkpoint()) as made:
            yield made

    @tiered("value", [np.nan, np.inf])
    @pytest.mark.parametrize("options", [GREEDY, DRAWN, FILTERED], ids=["greedy", "drawn", "filtered"])
    def test_is_warned_of_once_and_never_leaves_the_vocabulary(
        self, model: Model, options: dict[str, Any], value: float
    ) -> None:
        def change(consts: Array) -> Array:
            consts[17] = value
            return consts

        with broken(model, "lm_head.consts", change), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            first = model.generate(IDS, max_tokens=6, **options)
            second = model.generate([5, *IDS], max_tokens=6, **options)
            logits = model.logits([6, *IDS])
        assert not np.isfinite(logits[17])
        assert all(0 <= token < 101 for token in first + second)
        found = [each for each in caught if issubclass(each.category, GlinferWarning)]
        assert len(found) == 1
        assert "began in pass lm_head (shaders/gemv.frag)" in str(found[0].message)
        if np.isnan(value):
            assert 17 not in first + second
        elif options is GREEDY:
            assert set(first + second) == {17}

    def test_is_the_end_where_it_is_strict(self) -> None:
        def change(consts: Array) -> Array:
            consts[17] = np.inf
            return consts

        with opened(checkpoint(), strict=True) as model, broken(model, "lm_head.consts", change):
            for options in (GREEDY, FILTERED):
                with pytest.raises(NumbersError, match=r"\+inf began in pass lm_head"):
                    model.generate(IDS, max_tokens=2, **options)  # type: ignore[arg-type]
            with pytest.raises(NumbersError, match=r"1 \+inf, of 101 logits after 5 tokens"):
                model.logits(IDS)

    def test_minus_infinity_is_a_token_that_is_never_chosen(self, model: Model) -> None:
        def change(consts: Array) -> Array:
            consts[17] = -np.inf
            return consts

        model.engine.nan_guard.strict = True
        with broken(model, "lm_head.consts", change):
            assert model.logits(IDS)[17] == -np.inf
            assert 17 not in model.generate(IDS, max_tokens=8, **FILTERED)


def test_an_overflow_is_traced_to_the_pass_that_overflows() -> None:
    made = checkpoint()
    made.tensors["transformer.h.0.mlp.fc_in.bias"][:] = 100
    made.tensors["transformer.h.0.mlp.fc_out.weight"][:] *= np.float32(1e38)
    with (
        opened(made, "reference", strict=True) as model,
        pytest.raises(NumbersError, match=r"began in pass h\.0\.mlp\.fc_out"),
    ):
        model.logits(IDS)


@pytest.mark.parametrize("weights", [name for name in WEIGHTS if name != "file"])
def test_weights_that_are_no_numbers_are_refused_when_they_are_loaded(weights: str, tmp_path: Path) -> None:
    made = checkpoint()
    made.tensors["transformer.h.0.ln_1.bias"][3] = np.inf
    path = tmp_path / "broken.gab"
    save_checkpoint(made, path)
    with pytest.raises(FormatError, match=r"h\.0\.ln_1\.bias"):
        glinfer.load(path, weights=weights)


class Passes(np.ndarray[Any, Any]):
    """An array that notes every NumPy function that reads it whole."""

    noted: ClassVar[list[str]] = []

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        self.noted.append(f"{ufunc.__name__}.{method}")
        plain = [each.view(np.ndarray) if isinstance(each, Passes) else each for each in inputs]
        return getattr(ufunc, method)(*plain, **{name: value for name, value in options.items() if name != "out"})

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        self.noted.append(function.__name__)
        return super().__array_function__(function, types, arguments, options)  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("look", ["look", "usable"])
def test_the_look_is_one_pass_over_the_logits_and_no_copy(look: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Passes, "noted", [])
    logits = np.random.default_rng(0).normal(size=128_000).astype(np.float32).view(Passes)
    with opened(checkpoint()) as model:
        numbers = model.engine.nan_guard
        tracemalloc.start()
        try:
            numbers.look(logits, IDS) if look == "look" else numbers.usable(logits)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert Passes.noted == ["maximum.reduce"]
    assert peak < logits.nbytes / 100

"""Names and shapes, random weights, and the search for numbers that are none."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from each_case import each_case
from goldens import GAB_MODELS, ModelWriter

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats import Checkpoint, random_checkpoint, random_packed_checkpoint, weight_shapes
from glinfer.formats.gab.file import float_count, stored_arrays
from glinfer.quant import threads

SMALL = ModelConfig.from_options("vocab=7,dim=6,heads=3,blocks=2,context=5")


def test_counting_an_absurd_model_takes_no_memory() -> None:
    assert float_count(SMALL) == sum(array.size for array in stored_arrays(SMALL))
    absurd = ModelConfig(1 << 24, 1 << 22, 1, 1 << 24, 1 << 24)
    tracemalloc.start()
    try:
        width = 1 << 22
        block = 4 * width + 4 * width**2 + 4 * width * (width + 1) + width * (4 * width + 1)
        expected = (2 << 24) * width + (block << 24) + 2 * width + (width << 24) + (1 << 24)
        assert float_count(absurd) == expected
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


def test_large_random_matrices_are_the_same_on_any_number_of_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ModelConfig(1025, 1028, 4, 1, 8, intermediate_size=8, model_type="llama")
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(threads, "cores", lambda count=cores: count)
        found.append(random_checkpoint(config, seed=7, scale=0.5).tensors["model.embed_tokens.weight"])
    assert np.array_equal(*found)
    table = found[0].reshape(-1)
    assert len(np.unique(table[: 1 << 20])) > 900_000
    assert not np.array_equal(table[:1000], table[1 << 20 :][:1000])
    assert abs(table.mean()) < 0.003
    assert table.std() == pytest.approx(0.5, rel=0.01)


def test_random_weights_have_the_shapes_and_depend_on_the_seed() -> None:
    first, again, other = (random_checkpoint(SMALL, seed=seed) for seed in (3, 3, 4))
    assert {name: tensor.shape for name, tensor in first.tensors.items()} == weight_shapes(SMALL)
    assert all(tensor.dtype == np.float32 for tensor in first.tensors.values())
    assert all(np.array_equal(first.tensors[name], again.tensors[name]) for name in first.tensors)
    assert not any(np.array_equal(first.tensors[name], other.tensors[name]) for name in first.tensors)
    assert first.source == "random weights (seed 3)"


OF_EXPERTS = ModelConfig.from_options(
    "family=olmoe,blocks=2,heads=2,dim=64,inner=256,vocab=300,context=64,experts=4,experts_used=2"
)


def test_packed_random_weights_are_in_the_formats_of_files() -> None:
    made, other = (random_packed_checkpoint(OF_EXPERTS, "BF16", "MXFP4", seed=seed) for seed in (3, 4))
    shapes = {name: each.shape for held in (made.tensors, made.packed) for name, each in held.items()}
    assert shapes == weight_shapes(OF_EXPERTS)
    assert all(len(tensor.shape) == 1 for tensor in made.tensors.values())
    assert all(each.format == ("MXFP4" if ".experts." in name else "BF16") for name, each in made.packed.items())
    assert sum(each.format == "MXFP4" for each in made.packed.values()) == 2 * 4 * 3
    made.check_finite()
    first, second = (made.packed[f"model.layers.0.mlp.experts.{number}.up_proj.weight"] for number in (0, 1))
    assert first.floats().std() == pytest.approx(0.04, rel=0.05)
    assert np.array_equal(first.piece(7, 9), first.blocks[7:9])
    assert not np.array_equal(first.blocks, second.blocks)
    assert not np.array_equal(first.blocks, other.packed["model.layers.0.mlp.experts.0.up_proj.weight"].blocks)


@each_case(
    ("config", "formats", "message"),
    [
        (SMALL, ("BF16",), "models of gab have no packed matrices; leave out the file formats"),
        (OF_EXPERTS, ("Q4_K",), "embed_tokens.weight has 64 weights, which are not whole blocks of Q4_K"),
        (dataclasses.replace(OF_EXPERTS, hidden_size=256), ("IQ2_XXS",), "floats cannot be packed as IQ2_XXS"),
    ],
)
def test_packed_random_weights_refuse_what_has_no_blocks(
    config: ModelConfig, formats: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        random_packed_checkpoint(config, *formats)


@each_case("model", GAB_MODELS)
def test_seeded_models_are_the_recorded_ones_to_the_last_bit(golden_model: ModelWriter, model: str) -> None:
    """Three shapes, seeds and scales; write_gab_model compares the digests."""
    sizes = {"tiny": 1_077_452, "odd": 252_224, "full": 101_356_092}
    assert golden_model(model).stat().st_size == sizes[model]


@each_case(
    ("seed", "scale", "message"),
    [
        (-1, 0.04, "the seed is -1; expected an integer of at least 0"),
        (0, float("nan"), "the scale is nan; expected a finite number"),
        (0, -1.0, "the scale is -1.0; expected a finite number of at least 0"),
    ],
)
def test_random_weights_refuse_what_makes_none(seed: int, scale: float, message: str) -> None:
    with pytest.raises(InputError, match=message):
        random_checkpoint(SMALL, seed, scale)


def _with(name: str, tensor: np.ndarray) -> Checkpoint:
    return Checkpoint(SMALL, {**random_checkpoint(SMALL).tensors, name: tensor}, "here.gab")


def test_the_first_tensor_that_is_not_finite_is_named_with_count_and_index() -> None:
    wte = random_checkpoint(SMALL).tensors["transformer.wte.weight"].copy()
    wte[4, 2], wte[5, 0], wte[4, 3] = np.nan, np.inf, -np.inf
    damaged = _with("transformer.wte.weight", wte)
    later = Checkpoint(SMALL, {**damaged.tensors, "lm_head.bias": np.full(7, np.nan, np.float32)}, "here.gab")
    expected = r"^here\.gab: 3 values are NaN or infinite in tensor 'transformer\.wte\.weight', first at \[4, 2\];"
    with pytest.raises(FormatError, match=expected):
        later.check_finite()
    with pytest.raises(FormatError, match=r"1 value is NaN or infinite .*'lm_head\.bias', first at \[6\];"):
        _with("lm_head.bias", np.array([0, 0, 0, 0, 0, 0, np.nan], np.float32)).check_finite()


@each_case("place", [(0, 0), (299, 699), (120, 345), (93, 436)])
def test_the_index_is_right_in_large_views_that_are_not_contiguous(place: tuple[int, int]) -> None:
    stored = np.zeros((700, 301), np.float32)
    view = stored[:, :-1].T  # like a matrix of a GAB1 file: a transposed part of a wider one
    stored[:, -1] = np.nan  # outside the view, so not to be found
    view[place] = np.nan
    expected = rf"1 value is .*first at \[{place[0]}, {place[1]}\]"
    with pytest.raises(FormatError, match=expected):
        Checkpoint(SMALL, {"x": view}, "here").check_finite()


def test_looking_for_numbers_that_are_none_copies_no_tensor() -> None:
    stored = np.zeros((2000, 1000), np.float32)
    checkpoint = Checkpoint(SMALL, {"plain": stored, "turned": stored.T}, "here")
    tracemalloc.start()
    try:
        checkpoint.check_finite()
        assert tracemalloc.get_traced_memory()[1] < stored.nbytes / 8
    finally:
        tracemalloc.stop()

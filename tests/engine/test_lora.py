"""LoRA adapters next to the weights: the logits of merged weights, and for each sequence its own adapter."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_adapters import ALL, made_pairs, write_peft
from made_models import of_family
from tiny_models import in_floats, in_formats, tiny

import glinfer
from glinfer import BatchRequest
from glinfer.engine.model import Model
from glinfer.errors import GlinferError, InputError
from glinfer.formats import Checkpoint, save_checkpoint
from glinfer.formats.adapters.merge import merged, read_adapter
from glinfer.gl.context import Device, open_device

pytestmark = pytest.mark.gl

IDS = list(range(3, 25))
TOLERANCE = 1e-4
"""Of the range of the logits, as for peers: sums are added in another order, and attention here is sharp."""
GREEDY = {"max_tokens": 6, "temperature": 0}


def numbers(model: Model, name: str | None, score: bool = True) -> list[Any]:
    """Logits behind a prompt in pieces, and token by token, and a text's likelihoods."""
    with model.session() as session:
        session.use_adapter(model.adapters.number(name))
        for token in IDS:
            session.step(token)
        found = [model.logits(IDS, lora=name), session.logits()]
    return [*found, model.score([IDS], lora=name)[0].logprobs] if score else found


def outcomes(path: Path, name: str | None, device: Device, score: bool = True, **options: Any) -> list[Any]:
    with glinfer.load(path, device=device, weights="file", **options) as model:
        return numbers(model, name, score)


def check_merged(device: Device, folder: Path, made: Checkpoint) -> None:
    config = made.config
    folder.mkdir()
    path = folder / ("model.gguf" if made.packed else "model.safetensors")
    save_checkpoint(made, path, dtype="file" if made.packed else "float32")
    less = (20 / config.hidden_size) ** 0.5  # so that outputs change as much in wide models as in narrow ones
    several = made_pairs(config, 20, ["projection", "down"], 2, 0.1 * less)
    adapters = {
        "all": write_peft(folder / "all", made_pairs(config, 3, (*ALL, "head"), 1, 0.3 * less)),
        "some": write_peft(folder / "some", several, use_rslora=True),
    }
    for name, adapter in adapters.items():
        save_checkpoint(merged(made, [read_adapter(adapter, config)]), folder / f"{name}.safetensors")
        expected = outcomes(folder / f"{name}.safetensors", None, device)
        found = outcomes(path, name, device, lora=adapters)
        for one, other in zip(found, expected, strict=True):
            assert np.abs(one - other).max() <= TOLERANCE * np.ptp(expected[0])
        # A prompt in pieces and token by token, and one adapter or several: the same bits.
        np.testing.assert_array_equal(found[0], found[1])
        np.testing.assert_array_equal(outcomes(path, None, device, lora=adapter)[0], found[0])


@pytest.mark.slow
def test_merged_weights_with_multipliers_and_over_blocks(device: Device, tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    more: Any = {"embedding_multiplier": 3.0, "residual_multiplier": 0.4, "logits_scaling": 4.0}
    check_merged(device, tmp_path / "granite", in_floats(tiny("granite", **more)))
    blocks = tiny("llama", hidden_size=64, intermediate_size=64, head_dim=32)
    check_merged(device, tmp_path / "blocks", in_formats(blocks, "Q4_1"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small Llama, and two adapters of other ranks for other matrices."""
    made, path = of_family("llama"), tmp_path_factory.mktemp("lora")
    save_checkpoint(made, path / "model.safetensors", dtype="float32")
    write_peft(path / "a", made_pairs(made.config, 3, seed=1))
    write_peft(path / "b", made_pairs(made.config, 20, ["projection", "down"], seed=2))
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Model]:
    with open_device() as device:
        lora = {"a": folder / "a", "b": folder / "b"}
        with glinfer.load(folder / "model.safetensors", device=device, lora=lora) as opened:
            yield opened


def test_logits_are_those_of_merged_weights(folder: Path, model: Model, tmp_path: Path) -> None:
    made = of_family("llama")
    for name in "ab":  # of another rank for other matrices
        save_checkpoint(merged(made, [read_adapter(folder / name, made.config)]), tmp_path / f"{name}.safetensors")
        expected = outcomes(tmp_path / f"{name}.safetensors", None, model.device, score=False)
        found = numbers(model, name, score=False)
        for one, other in zip(found, expected, strict=True):
            assert np.abs(one - other).max() <= TOLERANCE * np.ptp(expected[0])
        np.testing.assert_array_equal(found[0], found[1])
        assert np.abs(model.logits(IDS) - expected[0]).max() > 0.01 * np.ptp(expected[0])
    plain = outcomes(folder / "model.safetensors", None, model.device, score=False)
    for one, other in zip(numbers(model, "base", score=False), plain, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.slow
def test_each_sequence_of_a_batch_has_its_own_adapter(model: Model) -> None:
    names = ("base", "a", "b", None)
    alone = {
        (name, skipped): model.generate(IDS[skipped:], lora=name, **GREEDY) for name in names for skipped in (0, 1)
    }
    assert len({tuple(alone[name, 0]) for name in names}) == 3
    assert alone[None, 0] == alone["base", 0]
    requests = [BatchRequest(IDS[skipped:], {"lora": name, **GREEDY}, (name, skipped)) for name, skipped in alone]
    # In few slots, others take over where what a prompt begins with was run with another adapter.
    assert {result.request.key: result.ids for result in model.batch(requests, slots=2)} == alone


@pytest.mark.slow
def test_each_sequence_has_its_own_adapter_of_experts_and_delta_rules(device: Device, tmp_path: Path) -> None:
    config = tiny("qwen3_next")
    save_checkpoint(in_floats(config), tmp_path / "model.safetensors")
    roles = {
        "a": ["gate", "up", "router", "shared_down"],
        "b": ["down", "shared_router"],
        "c": ["delta_in"],
        "d": ["delta_out"],
    }
    lora = {
        name: write_peft(tmp_path / name, made_pairs(config, 3 + 17 * (name in "bd"), of, ord(name)))
        for name, of in roles.items()
    }
    with glinfer.load(tmp_path / "model.safetensors", device=device, lora=lora) as model:
        alone = {name: model.generate(IDS, lora=name, **GREEDY) for name in ("base", *lora)}
        assert len({tuple(ids) for ids in alone.values()}) == 5
        requests = [BatchRequest(IDS, {"lora": name, **GREEDY}, name) for name in alone]
        assert {result.request.key: result.ids for result in model.batch(requests, slots=3)} == alone


def test_streams_of_several_adapters_take_turns(model: Model) -> None:
    expected = {name: model.generate(IDS, lora=name, **GREEDY) for name in ("a", "b")}
    streams = {name: model.stream(IDS, lora=name, **GREEDY) for name in ("a", "b")}
    found: dict[str, list[Any]] = {name: [] for name in streams}
    for _ in range(GREEDY["max_tokens"]):
        for name, stream in streams.items():
            found[name].append(next(stream))
    assert found == expected


def test_its_draws_and_textures_are_counted(model: Model) -> None:
    counts = {row.kind: row.count for row in model.draws().rows}
    assert {kind: count for kind, count in counts.items() if kind.endswith(".lora")} == dict.fromkeys(
        ("attn.qkv.lora", "attn.out_proj.lora", "mlp.fc_in.lora", "mlp.fc_out.lora"), 2
    )
    before = model.device.draws_issued
    with model.session() as session:
        session.prefill([3, 4])
        session.logits()
        assert session.draws_issued == model.device.draws_issued - before == 2 * (model.draws().total - 1) - 1
    assert model.verify_textures().ok


def test_refusals(folder: Path, model: Model) -> None:
    with pytest.raises(InputError, match="no adapter 'c'; expected one of a, b, base"):
        model.generate(IDS, lora="c")
    with pytest.raises(InputError, match="request 0: there is no adapter"):
        model.batch([BatchRequest(IDS, {"lora": "c"})])
    for lora, words in (
        ({"base": folder / "a"}, "named 'base'"),
        ({"": folder / "a"}, "named ''"),
        ([folder / "a"], r"lora is \["),
        ({"a": 3}, "lora is {'a': 3}; expected"),
        (folder / "none", "no such adapter"),
    ):
        with pytest.raises(GlinferError, match=words):
            glinfer.load(folder / "model.safetensors", device=model.device, lora=lora)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="next to the fast plan"):
        glinfer.load(folder / "model.safetensors", device=model.device, lora=folder / "a", plan="reference")


def test_an_adapter_named_default_is_that_of_texts_that_name_none(folder: Path, model: Model) -> None:
    lora = {"b": folder / "b", "default": folder / "a"}
    with glinfer.load(folder / "model.safetensors", device=model.device, lora=lora) as other:
        np.testing.assert_array_equal(other.logits(IDS), model.logits(IDS, lora="a"))
        np.testing.assert_array_equal(other.logits(IDS, lora="base"), model.logits(IDS))

"""LoRA adapters in files: which matrices they change and by how much, what is refused, and what merging writes."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from each_case import each_case
from made_adapters import ALL, made_pairs, write_gguf_adapter, write_peft
from safetensors.numpy import load_file, save_file
from tiers import tiered
from tiny_models import in_floats, in_formats, tiny

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.export.convert import convert_model
from glinfer.families import DECODERS
from glinfer.families.huggingface import nothing
from glinfer.formats import load_checkpoint, save_checkpoint
from glinfer.formats.adapters.merge import merged, read_adapter

FORMS = sorted(
    name
    for name, each in DECODERS.items()
    if each.huggingface and each.huggingface.factors is nothing and not each.layer.rounded and not each.latent
)
LLAMA = tiny("llama")
QUERY = "model.layers.0.self_attn.q_proj"


def alternates(config: ModelConfig) -> bool:
    """Whether rows of gate and up take turns in the files of a family."""
    form = config.family.huggingface
    return form is not None and form.layouts.get("gate") == "alternating"


@tiered("family", FORMS, keep=[FORMS.index("gpt2"), FORMS.index("phi3"), FORMS.index("llama")])
def test_the_sum_of_a_peft_adapter_is_the_models_in_float64(tmp_path: Path, family: str) -> None:
    config = tiny(family)
    made, pairs = in_floats(config), made_pairs(config)
    folder = write_peft(tmp_path / "a", pairs, alternate=alternates(config))
    found = merged(made, [read_adapter(folder, config, 0.5)])
    from glinfer.formats.huggingface.layouts import order_in_file
    from glinfer.formats.tensors import stored_tensors

    names, changed = config.family.names, set()
    for stored in stored_tensors(config, config.family.in_huggingface.names or names):
        if (pair := pairs.get(stored.name.removesuffix(".weight"))) is not None:
            change = (pair[1].astype(np.float64) @ pair[0] * (0.5 * 2)).reshape(stored.shape)  # alpha is twice the rank
            if (order := order_in_file(stored, config)) is not None:
                change = change[order]
            for tensor, rows in stored.split(change):
                name = tensor.name(names)
                np.testing.assert_array_equal(found.tensors[name], (made.tensors[name] + rows).astype(np.float32))
                changed.add(name)
    layers = map(config.layer, range(config.num_hidden_layers))
    mlp = 3 if config.family.gated else 2
    expected = 0
    for layer in layers:
        expected += {"attention": 4, "delta": 5, "ssm": 4}.get(layer.mixing, 0)
        if layer.mlp:
            beside = mlp * (layer.experts is not None and config.shared_intermediate_size > 0)
            expected += mlp if layer.experts is None else (mlp * layer.experts.count + 1 + 4 * layer.experts.shared)
            expected += beside
    assert len(changed) == expected
    for name in made.tensors.keys() - changed:
        assert found.tensors[name] is made.tensors[name]


@tiered("family", ["llama", "gpt_oss", "qwen3_moe", "qwen2", "gpt2", "qwen3_5_moe_text"], keep=2)
def test_a_gguf_adapter_is_the_peft_one(tmp_path: Path, family: str) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    roles = [role for role in ALL if not role.startswith("delta")]  # whose heads come in another order, see below
    config, pairs = tiny(family), made_pairs(tiny(family), roles=roles)
    one = read_adapter(write_peft(tmp_path / "a", pairs, lora_alpha=5, alternate=alternates(config)), config)
    other = read_adapter(write_gguf_adapter(tmp_path / "a.gguf", config, pairs, 5.0), config)
    assert one.matrices.keys() == other.matrices.keys()
    for name, change in one.matrices.items():
        same = other.matrices[name]
        assert change.scale == same.scale == 5 / 3
        np.testing.assert_array_equal(change.up, same.up)
        np.testing.assert_array_equal(change.down, same.down)


def test_heads_of_a_delta_rule_come_in_the_order_of_the_model(tmp_path: Path) -> None:
    """Those that share keys follow each other in directories of PEFT, and take turns in GGUF files."""
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    apart = tiny("qwen3_5_text", linear_num_key_heads=2, linear_num_value_heads=6)
    in_turn = dataclasses.replace(apart, linear_keys_in_turn=True)
    pairs = made_pairs(apart, roles=["delta_in", "delta_out"])
    peft = write_peft(tmp_path / "a", pairs, lora_alpha=5)
    gguf = write_gguf_adapter(tmp_path / "a.gguf", in_turn, pairs, 5.0)
    value, keys = apart.linear_value_head_dim, 4 * apart.linear_key_head_dim
    layer = next(layer for layer in range(apart.num_hidden_layers) if apart.layer(layer).delta is not None)
    modules = f"model.layers.{layer}.linear_attn"

    def heads(adapter: Path, config: ModelConfig) -> list[list[Any]]:
        """What belongs to each head of values: rows of four matrices, and columns of one."""
        found = read_adapter(adapter, config).matrices
        of = {part: found[f"{modules}.in_proj_{part}.weight"].up for part in ("qkv", "z", "a", "b")}
        assert (of["qkv"][:keys] == pairs[f"{modules}.in_proj_qkv"][1][:keys]).all()
        columns = found[f"{modules}.out_proj.weight"].down.T
        parts = [each.reshape(6, value, -1) for each in (of["qkv"][keys:], of["z"], columns)]
        return [[each[head] for each in (*parts, of["a"], of["b"])] for head in range(6)]

    for adapter, own, other in ((peft, apart, in_turn), (gguf, in_turn, apart)):
        found = {config.linear_keys_in_turn: heads(adapter, config) for config in (own, other)}
        of_file = pairs[f"{modules}.in_proj_z"][1][value : 2 * value]
        np.testing.assert_array_equal(found[own.linear_keys_in_turn][1][1], of_file)
        for key, shared in itertools.product(range(2), range(3)):
            for one, same in zip(found[False][3 * key + shared], found[True][2 * shared + key], strict=True):
                np.testing.assert_array_equal(one, same)


def test_peft_adapters_of_a_model_with_factors_are_refused(tmp_path: Path) -> None:
    folder = write_peft(tmp_path, made_pairs(tiny("falcon_h1")))
    with pytest.raises(FormatError, match=r"factors of its matrices.*convert_lora_to_gguf"):
        read_adapter(folder, tiny("falcon_h1"))


def test_adapters_of_attention_over_a_latent_are_refused(tmp_path: Path) -> None:
    config = tiny("deepseek_v3")
    pairs = made_pairs(config)
    with pytest.raises(FormatError, match=r"self_attn.* belongs to attention over a latent.*expected MLP or head"):
        read_adapter(write_peft(tmp_path, pairs), config)
    others = {name: pair for name, pair in pairs.items() if "self_attn" not in name}
    assert len(read_adapter(write_peft(tmp_path, others), config).matrices) == len(others)


def test_scales_are_those_of_peft(tmp_path: Path) -> None:
    patterns = {"v_proj": 9, "^model.layers.1.*up_proj": 3}
    folder = write_peft(tmp_path, made_pairs(LLAMA), lora_alpha=6, use_rslora=True, alpha_pattern=patterns)
    found = {name.removesuffix(".weight"): each.scale for name, each in read_adapter(folder, LLAMA).matrices.items()}
    root = 3**0.5
    assert found[QUERY] == pytest.approx(6 / root)
    assert found["model.layers.1.self_attn.v_proj"] == pytest.approx(9 / root)
    assert found["model.layers.0.mlp.up_proj"] == pytest.approx(6 / root)
    assert found["model.layers.1.mlp.up_proj"] == pytest.approx(3 / root)


def test_ranks_may_differ_and_numbers_be_halves(tmp_path: Path) -> None:
    pairs = made_pairs(LLAMA, roles=["projection"])
    pairs[QUERY] = tuple(part.astype(np.float16) for part in made_pairs(LLAMA, 5, ["projection"])[QUERY])  # type: ignore[assignment]
    found = read_adapter(write_peft(tmp_path, pairs, r=3, lora_alpha=6), LLAMA).matrices
    assert found[f"{QUERY}.weight"].rank == 5
    assert found[f"{QUERY}.weight"].scale == 6 / 5
    assert found[f"{QUERY}.weight"].up.dtype == np.float32


@each_case(
    "settings, words",
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"use_dora": True}, "use_dora is True"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights is 'pissa_niter_4'"),
        ({"lora_alpha": "8"}, "expected a number"),
        ({"lora_alpha": 10**400}, "expected a number"),
        ({"alpha_pattern": {"(a+)+": 1}}, "alpha_pattern"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
    ],
)
def test_settings_that_are_refused(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(FormatError, match=r"adapter_config\.json") as error:
        read_adapter(write_peft(tmp_path, made_pairs(LLAMA, roles=["down"]), **settings), LLAMA)
    assert words in str(error.value)


ONES, MODEL = np.ones((3, 20), np.float32), "base_model.model."


@each_case(
    "name, array, words",
    [
        (f"{QUERY}.lora_B.weight", None, "lora_B is missing"),
        (f"{QUERY}.lora_A.weight", np.ones((3, 24), np.float32), "belongs to another one"),
        (f"{QUERY}.lora_A.weight", np.ones((4, 20), np.float32), "ranks 4 and 3"),
        (f"{QUERY}.lora_A.weight", ONES * np.nan, "NaN or infinite"),
        (f"{QUERY}.lora_A.weight", ONES.astype(np.int8), "is I8"),
        (f"{QUERY}.lora_magnitude_vector.weight", ONES, "is for DoRA"),
        ("model.embed_tokens.lora_embedding_A", ONES, "is for embeddings"),
        ("model.layers.2.self_attn.q_proj.lora_A.weight", ONES, "not a matrix of this model"),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, name: str, array: Any, words: str) -> None:
    weights = write_peft(tmp_path, made_pairs(LLAMA, roles=["projection"])) / "adapter_model.safetensors"
    tensors = {**load_file(weights), MODEL + name: array}
    save_file({key: value for key, value in tensors.items() if value is not None}, weights)
    with pytest.raises(FormatError, match="adapter_model") as error:
        read_adapter(tmp_path, LLAMA)
    assert words in str(error.value)


def test_files_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no such adapter"):
        read_adapter(tmp_path / "none", LLAMA)
    with pytest.raises(FormatError, match=r"without adapter_config\.json"):
        read_adapter(tmp_path, LLAMA)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))
    (tmp_path / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(FormatError, match=r"adapter_model\.bin only"):
        read_adapter(tmp_path, LLAMA)
    (tmp_path / "adapter_model.safetensors").write_bytes(b"no header")
    with pytest.raises(FormatError, match=r"adapter_model\.safetensors"):
        read_adapter(tmp_path, LLAMA)
    with pytest.raises(FormatError, match="found no adapter"):
        read_adapter(tmp_path / "adapter_model.bin", LLAMA)
    with pytest.raises(InputError, match="expected a finite number"):
        read_adapter(write_peft(tmp_path / "a", made_pairs(LLAMA)), LLAMA, float("nan"))
    tied = tiny("llama", tie_word_embeddings=True)
    head = made_pairs(tiny("llama", tie_word_embeddings=False), roles=["head"])
    with pytest.raises(FormatError, match="tied to the embeddings"):
        read_adapter(write_peft(tmp_path / "head", head), tied)
    with pytest.raises(FormatError, match="expected a Hugging Face family"):
        read_adapter(tmp_path / "a", tiny("gab"))
    ones = np.ones((2, 20), np.float32), np.ones((48, 2), np.float32)
    for name, words in (
        ("experts.0.up_proj", r"expected \[rank, 20\] and \[24, rank\]"),
        ("experts.9.up_proj", "not a matrix"),
    ):
        with pytest.raises(FormatError, match=words):
            read_adapter(write_peft(tmp_path / "e", {f"model.layers.0.mlp.{name}": ones}), tiny("qwen3_moe"))
    for shapes in (((8, 20), (48, 12)), ((8, 20), (40, 8)), ((3, 20), (48, 3)), ((8, 24), (48, 8))):
        arrays = [np.ones(shape, np.float32) for shape in shapes]
        folder = write_peft(tmp_path / "e", {"model.layers.0.mlp.experts": (arrays[0], arrays[1])})
        with pytest.raises(FormatError, match=r"this model; the adapter belongs to another one|have ranks"):
            read_adapter(folder, tiny("qwen3_moe", num_experts=4))


@each_case(
    ("changes", "words"),
    [({"type": "model"}, r"general\.type"), ({"kind": "ia3"}, r"adapter\.type"), ({"architecture": "qwen2"}, "qwen2")],
)
def test_gguf_files_that_are_refused(tmp_path: Path, changes: dict[str, str], words: str) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    path = write_gguf_adapter(tmp_path / "a.gguf", LLAMA, made_pairs(LLAMA, roles=["down"]), 4.0, **changes)
    with pytest.raises(FormatError, match=words):
        read_adapter(path, LLAMA)


def test_convert_writes_the_sum(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    config = tiny("llama", hidden_size=32, intermediate_size=32, head_dim=16)
    made = in_formats(config, "Q8_0")
    save_checkpoint(made, tmp_path / "m.gguf", dtype="file")
    adapter = write_peft(tmp_path / "a", made_pairs(config, roles=["down"]))
    expected = merged(load_checkpoint(tmp_path / "m.gguf"), [read_adapter(adapter, config, 0.5)])
    convert_model(tmp_path / "m.gguf", tmp_path / "out.gguf", lora=adapter, lora_scale=0.5)
    found = load_checkpoint(tmp_path / "out.gguf")
    assert {name for name, form in found.formats().items() if form == "F32" and "proj" in name} == {
        f"model.layers.{layer}.mlp.down_proj.weight" for layer in range(2)
    }
    for name in expected.formats():
        np.testing.assert_array_equal(found.floats(name), expected.floats(name))
    convert_model(tmp_path / "m.gguf", tmp_path / "q8.gguf", lora=adapter, dtype="q8_0")
    assert load_checkpoint(tmp_path / "q8.gguf").formats()["model.layers.0.mlp.down_proj.weight"] == "Q8_0"
    with pytest.raises(InputError, match="--imatrix with --lora"):
        convert_model(tmp_path / "m.gguf", tmp_path / "x.gguf", lora=adapter, dtype="q4_k", imatrix=tmp_path / "t")
    with pytest.raises(InputError, match="the source itself"):
        convert_model(tmp_path / "m.gguf", adapter / "adapter_model.safetensors", lora=adapter, with_tokenizer=False)


# Copies of the model's own tensors, under the names that PEFT gives them (peft/utils/save_and_load.py)

HEAD = f"{MODEL}lm_head"
COPIES = [
    f"{HEAD}.base_layer.weight",
    f"{HEAD}.weight",
    f"{HEAD}.modules_to_save.weight",
    f"{HEAD}.modules_to_save.default.weight",
    f"{HEAD}.original_module.weight",
]


def with_copies(folder: Path, config: ModelConfig, **copies: np.ndarray) -> Path:
    """An adapter of head and queries with further tensors; __ in a name stands for a point."""
    path = write_peft(folder, made_pairs(config, roles=["head", "projection"]), modules_to_save=["lm_head"])
    held = load_file(path / "adapter_model.safetensors")
    held.update((name.replace("__", "."), np.ascontiguousarray(array)) for name, array in copies.items())
    save_file(held, path / "adapter_model.safetensors")
    return path


def test_copies_that_equal_the_model_are_passed_over(tmp_path: Path) -> None:
    config = tiny("llama", tie_word_embeddings=False)
    base = in_floats(config)
    plain = read_adapter(with_copies(tmp_path / "plain", config), config).matrices
    for number, name in enumerate(COPIES):
        adapter = with_copies(tmp_path / str(number), config, **{name: base.tensors["lm_head.weight"]})
        found = read_adapter(adapter, config, base=base).matrices
        assert found.keys() == plain.keys()
        assert all(np.array_equal(found[each].up, plain[each].up) for each in plain)
        with pytest.raises(FormatError, match="is not supported"):  # nothing to compare it with
            read_adapter(adapter, config)
    embeddings = base.tensors["model.embed_tokens.weight"]
    both = {f"{MODEL}model.embed_tokens.weight": embeddings, f"{HEAD}.weight": embeddings}
    tied = tiny("llama", tie_word_embeddings=True)
    path = write_peft(tmp_path / "tied", made_pairs(tied, roles=["projection"]))
    save_file({**load_file(path / "adapter_model.safetensors"), **both}, path / "adapter_model.safetensors")
    assert read_adapter(path, tied, base=dataclasses.replace(base, config=tied)).matrices


def test_copies_that_replace_the_model_are_refused_by_name(tmp_path: Path) -> None:
    config = tiny("llama", tie_word_embeddings=False)
    base = in_floats(config)
    head = base.tensors["lm_head.weight"]
    near, changed = head.copy(), r"lm_head\S* has other numbers than the model: it was trained, .*not supported; merge"
    near[-1, -1] = np.nextafter(near[-1, -1], np.float32(9))
    for number, (array, words) in enumerate(
        (
            (near, changed),
            (np.full_like(head, np.nan), changed),
            (head[:-1], r"is \[\d+, \d+\], and the model has \[.*\]: it was resized, which is not supported"),
            (head.T, "it was resized"),
            (np.zeros(head.shape, np.int8), r"\(I8\) is not supported"),
        )
    ):
        adapter = with_copies(tmp_path / str(number), config, **{COPIES[number % len(COPIES)]: array})
        with pytest.raises(FormatError, match=words):
            read_adapter(adapter, config, base=base)
    adapter = with_copies(tmp_path / "other", config, **{f"{MODEL}score.weight": head})
    with pytest.raises(FormatError, match=r"score\.weight' \(F32\) is not supported; expected matrices lora_A"):
        read_adapter(adapter, config, base=base)


@each_case(
    ("stored", "dtype"),
    [("float16", "float16"), ("float16", "float32"), ("bfloat16", "float32"), ("float32", "float16")],
)
def test_a_copy_in_another_precision_is_a_copy(tmp_path: Path, stored: str, dtype: str) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    config = tiny("llama", tie_word_embeddings=False)
    made = in_floats(config)
    save_checkpoint(made, tmp_path / "m.gguf", dtype=stored)
    base, head = load_checkpoint(tmp_path / "m.gguf"), made.tensors["lm_head.weight"].copy()
    head = np.asarray(head, dtype=dtype)
    found = read_adapter(with_copies(tmp_path / "a", config, **{COPIES[0]: head}), config, base=base)
    assert found.matrices
    head[3, 5] *= 1 + 2**-6
    with pytest.raises(FormatError, match="has other numbers than the model"):
        read_adapter(with_copies(tmp_path / "b", config, **{COPIES[0]: head}), config, base=base)


@each_case("dtype", ["q8_0", "q6_k", "q4_0", "q2_k", "iq4_nl"])
def test_a_copy_of_a_quantised_head_is_within_its_error(tmp_path: Path, dtype: str) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")
    config = tiny("llama", tie_word_embeddings=False, hidden_size=256, num_attention_heads=4, head_dim=64)
    made = in_floats(config)
    save_checkpoint(made, tmp_path / "m.gguf", dtype=dtype)
    base, head = load_checkpoint(tmp_path / "m.gguf"), made.tensors["lm_head.weight"].copy()
    assert base.formats()["lm_head.weight"] not in ("F32", "F16")
    assert read_adapter(with_copies(tmp_path / "a", config, **{COPIES[0]: head}), config, base=base).matrices
    head[7] = -head[7]  # one token's row
    with pytest.raises(FormatError, match="has other numbers than the model"):
        read_adapter(with_copies(tmp_path / "b", config, **{COPIES[0]: head}), config, base=base)

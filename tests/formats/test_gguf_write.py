"""GGUF files written here: what is read back is what was written, and llama.cpp computes the same logits with it."""

from __future__ import annotations

import dataclasses
import itertools
import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from each_case import each_case
from gguf_forms import logits_of, rewritten
from goldens import recorded
from goldens.gguf_models import COMPARED, CONFIGS, GAB, IDS, LLAMA3, config
from goldens.llama import llama_ids, llama_logits
from rope_tables import rope_table
from tiers import tiered
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from glinfer.config import ModelConfig
from glinfer.errors import FormatError, InputError
from glinfer.formats import Checkpoint, random_checkpoint, weight_shapes
from glinfer.formats.gab.bpe import BpeModel
from glinfer.formats.gguf.model import read_gguf
from glinfer.formats.gguf.split import read_gguf_file
from glinfer.formats.gguf.words import EXPRESSIONS
from glinfer.formats.gguf.write import DTYPES, INSTEAD, as_relative, write_gguf
from glinfer.formats.packed import PackedTensor
from glinfer.quant.packing import PACKED_HERE
from glinfer.text.tokenizer import Tokenizer, learn_bpe

gguf = pytest.importorskip("gguf", reason="gguf is not installed (pip install 'glinfer[gguf]')")

SEARCHED = [name for name, (kind, _) in DTYPES.items() if kind in PACKED_HERE]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def written(path: Path, checkpoint: Checkpoint, **options: Any) -> Checkpoint:
    write_gguf(checkpoint, path, **options)
    return read_gguf(path)


# What is read back


@each_case("name", CONFIGS)
def test_what_is_read_back_is_what_was_written(path: Path, name: str) -> None:
    made = random_checkpoint(CONFIGS[name], seed=5)
    found = written(path, made)
    expected = dict(found.config.rope_scaling), found.config
    assert dict(made.config.rope_scaling) == {key: pytest.approx(value) for key, value in expected[0].items()}
    assert dataclasses.replace(expected[1], rope_scaling=made.config.rope_scaling) == made.config
    assert sorted(found.tensors) == sorted(weight_shapes(made.config))
    assert not found.packed
    for tensor, values in made.tensors.items():
        # The norms of some are stored with 1 added, and the exponents of decays as what they give, which rounds.
        rounds = made.config.family.norm_offset and tensor.endswith("norm.weight")
        rounding = 1e-6 if tensor.endswith(".A_log") else 1e-7 if rounds else 0
        assert np.abs(found.tensors[tensor] - values).max() <= rounding, tensor


@each_case(
    ("shape", "family"),
    [
        (config("granitemoehybrid", attention_multiplier=0.25), "granite"),  # without scans
        (config("mistral", sliding_window=9), "llama"),
    ],
)
def test_a_family_that_computes_what_another_does_is_written_as_that(
    path: Path, shape: ModelConfig, family: str
) -> None:
    made = random_checkpoint(shape, seed=5)
    found = written(path, made)
    assert found.config == dataclasses.replace(shape, model_type=family)
    assert all(np.array_equal(found.tensors[name], made.tensors[name]) for name in made.tensors)


@each_case("name", [name for name, each in CONFIGS.items() if each.family.in_gguf.head == "own"])
def test_tied_models_have_a_head_where_llama_cpp_needs_one(path: Path, name: str) -> None:
    made = random_checkpoint(dataclasses.replace(CONFIGS[name], tie_word_embeddings=True), seed=5)
    found = written(path, made, dtype="q8_0")
    file = read_gguf_file(path)
    assert file.tensors["output.weight"].type == file.tensors["token_embd.weight"].type == "Q8_0"
    names = made.config.family.names
    assert np.array_equal(*(found.packed[f"{each}.weight"].blocks for each in (names.head, names.embeddings)))


@each_case("name", [name for name, each in CONFIGS.items() if each.family.in_gguf.head == "tied"])
def test_a_head_that_llama_cpp_would_not_load_is_refused(path: Path, name: str) -> None:
    made = random_checkpoint(dataclasses.replace(CONFIGS[name], tie_word_embeddings=False), seed=5)
    with pytest.raises(InputError, match=r"cannot hold this model: it has a head of its own; .* has the embeddings as"):
        write_gguf(made, path)
    assert not path.exists()


@pytest.mark.slow
@each_case("tied", [True, False])
@each_case("name", CONFIGS)
def test_llama_cpp_loads_tied_and_untied_models(path: Path, name: str, tied: bool) -> None:
    shape = dataclasses.replace(CONFIGS[name], tie_word_embeddings=tied)
    if tied or shape.family.in_gguf.head != "tied":
        write_gguf(random_checkpoint(shape, seed=5, scale=0.1), path)
        assert np.isfinite(llama_logits(path, IDS)).all()


@each_case("dtype", DTYPES)
@each_case("name", ["gpt2", "llama"])
def test_dtypes(path: Path, name: str, dtype: str) -> None:
    made = random_checkpoint(dataclasses.replace(CONFIGS[name], intermediate_size=72), seed=5)
    found = written(path, made, dtype=dtype)
    assert read_gguf_file(path).metadata["general.file_type"] == {
        "float32": 0, "float16": 1, "bfloat16": 32, "q4_0": 2, "q4_1": 3, "q5_0": 8, "q5_1": 9, "q8_0": 7,
        "q2_k": 10, "q3_k": 11, "q4_k": 14, "q5_k": 16, "q6_k": 18, "iq4_nl": 25, "iq4_xs": 30,
    }[dtype]  # fmt: skip
    for tensor, values in made.tensors.items():
        expected = DTYPES[dtype][0] if values.ndim == 2 else "F32"
        expected = INSTEAD.get(expected, expected)  # rows of 64 are no blocks of 256
        if values.shape[-1] == 72 and "float" not in dtype:
            expected = "F32"
        if tensor == "transformer.wpe.weight" and dtype != "float16":
            expected = "F32"
        assert found.formats()[tensor] == expected, tensor
        step = {"F32": 0, "F16": 2**-11, "BF16": 2**-8, "Q8_0": 2**-7, "Q5_0": 2**-4, "Q5_1": 2**-4}.get(
            expected, 2**-3
        )
        assert np.abs(found.floats(tensor) - values).max() <= step * np.abs(values).max(), tensor


WIDE = config("llama", hidden_size=256, intermediate_size=256, num_hidden_layers=1, tie_word_embeddings=True)


@each_case("dtype", SEARCHED)
def test_blocks_of_256(path: Path, dtype: str) -> None:
    found = written(path, random_checkpoint(WIDE, seed=5), dtype=dtype)
    assert set(found.formats().values()) == {"F32", DTYPES[dtype][0]}


def test_blocks_of_256_are_searched_for_the_smallest_error(path: Path) -> None:
    """One matrix has importance, and its errors are smaller where that is large."""
    made = random_checkpoint(WIDE, seed=5)
    name = "model.layers.0.mlp.down_proj.weight"
    importance = np.where(np.arange(256) < 16, 100.0, 1.0).astype(np.float32)
    plain, found = written(path, made, dtype="q4_k"), written(path, made, dtype="q4_k", importance={name: importance})
    off, plain_off = (((each.floats(name) - made.tensors[name]) ** 2).mean(axis=0) for each in (found, plain))
    assert off[:16].sum() < 0.999 * plain_off[:16].sum()
    for other in made.tensors:
        assert np.array_equal(found.floats(other), plain.floats(other)) is (other != name), other


@each_case("dtype", ["float16", "q4_1"])
def test_tensors_as_they_are(path: Path, tmp_path: Path, dtype: str) -> None:
    first = written(path, random_checkpoint(CONFIGS["llama"], seed=5), dtype=dtype)
    second = written(tmp_path / "again.gguf", first, dtype=None)
    assert second.config == first.config
    assert second.formats() == first.formats()
    assert len(first.packed) == 16
    for name, tensor in first.packed.items():
        assert np.array_equal(second.packed[name].blocks, tensor.blocks), name
    for name, values in first.tensors.items():
        assert np.array_equal(second.tensors[name], values), name
    one, two = (gguf.GGUFReader(each).tensors[0].data.tobytes() for each in (path, tmp_path / "again.gguf"))
    assert one == two


def test_packed_tensors_in_another_dtype(path: Path, tmp_path: Path) -> None:
    first = written(path, random_checkpoint(CONFIGS["gpt2"], seed=5), dtype="q8_0")
    second = written(tmp_path / "again.gguf", first, dtype="float32")
    for name in first.packed:
        assert np.array_equal(second.tensors[name], first.floats(name)), name


def test_rows_with_scales_of_their_own_need_a_dtype(path: Path) -> None:
    made = random_checkpoint(CONFIGS["llama"], seed=5)
    name = "model.layers.0.mlp.up_proj.weight"
    tensors = dict(made.tensors)
    rows = np.concatenate([np.full((96, 64), 3, np.uint8), np.full((96, 1), 0.5, "<f4").view(np.uint8)], axis=1)
    del tensors[name]
    packed = dataclasses.replace(made, tensors=tensors, packed={name: PackedTensor("Q8_ROW", rows)})
    with pytest.raises(InputError, match=f"tensor '{name}' is Q8_ROW, which GGUF does not have; choose a dtype"):
        write_gguf(packed, path, dtype=None)
    assert (written(path, packed).tensors[name] == 1.5).all()


def test_queries_of_another_type_than_keys(path: Path) -> None:
    made = random_checkpoint(CONFIGS["gpt2"], seed=5)
    name = "transformer.h.0.attn.q_proj.weight"
    tensors = dict(made.tensors)
    halves = tensors.pop(name).astype("<f2")
    mixed = dataclasses.replace(made, tensors=tensors, packed={name: PackedTensor("F16", halves.view(np.uint8))})
    found = written(path, mixed, dtype=None)
    assert np.array_equal(found.tensors[name], halves.astype(np.float32))
    assert np.array_equal(found.tensors[name.replace("q_", "k_")], made.tensors[name.replace("q_", "k_")])


def test_gab_becomes_gpt2(path: Path) -> None:
    made = random_checkpoint(GAB, seed=5)
    found, expected = written(path, made), as_relative(made)
    assert found.config == expected.config == dataclasses.replace(GAB, model_type="gpt2")
    assert set(found.tensors) == set(expected.tensors) == set(weight_shapes(expected.config))
    for name, values in expected.tensors.items():
        assert np.array_equal(found.tensors[name], values), name
    assert not found.tensors["transformer.h.1.attn.k_proj.bias"].any()


def test_llama3_s_scaling_becomes_factors(path: Path) -> None:
    made = random_checkpoint(config("llama", rope_scaling=LLAMA3, max_position_embeddings=128), seed=5)
    found = written(path, made)
    tables = [rope_table(128, 16, 10000.0, dict(each.config.rope_scaling))[0] for each in (made, found)]
    assert np.abs(tables[0] - rope_table(128, 16)[0]).max() > 0.1
    assert np.abs(tables[0] - tables[1]).max() < 2e-5
    assert written(path, found).config == found.config


# What is refused


def test_a_failure_leaves_the_old_file(path: Path) -> None:
    path.write_bytes(b"old")
    path.chmod(0o640)
    made = random_checkpoint(CONFIGS["llama"], seed=5)
    with pytest.raises(InputError, match=r"dtype is 'q3'; expected one of float32, float16"):
        write_gguf(made, path, dtype="q3")
    huge = {**made.tensors, "lm_head.weight": np.full((96, 64), 1e6, np.float32)}
    with pytest.raises(InputError, match=r"tensor 'lm_head.weight': a weight is not finite, or too large for float16"):
        write_gguf(dataclasses.replace(made, tensors=huge), path, dtype="float16")
    with pytest.raises(InputError, match=r"tensor 'lm_head.weight': a weight of 1e\+06 is too large for Q4_1"):
        write_gguf(dataclasses.replace(made, tensors=huge), path, dtype="q4_1")
    with pytest.raises(FormatError, match=r"tensor 'lm_head.weight' is missing"):
        write_gguf(dataclasses.replace(made, tensors=dict(list(made.tensors.items())[:-1])), path)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in path.parent.iterdir()] == ["model.gguf"]
    write_gguf(made, path)
    assert read_gguf(path).config == made.config
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    with pytest.raises(FormatError, match="cannot write it: No such file or directory"):
        write_gguf(made, path.parent / "missing" / "model.gguf")


# llama.cpp


ALIKE = ["gpt2, own head", "llama, biases", "llama, linear", "gemma", "qwen35", "qwen35moe", "olmoe", "granitemoe"]


@tiered("names", [[name for name in COMPARED if name not in ALIKE], ALIKE])
def test_the_logits_are_those_of_llama_cpp(path: Path, names: list[str]) -> None:
    """Of models as they are read back, and as llama.cpp computed with the files."""
    for name in names:
        made = random_checkpoint(COMPARED[name], seed=5, scale=0.1)
        expected, theirs = logits_of(written(path, made), IDS), np.array(recorded("llama_logits")[name])
        assert np.abs(theirs).max() > 1, name
        # Its GELU is looked up in a table of half floats.
        tolerance = 1e-3 * np.abs(expected).max() if "gelu" in made.config.hidden_act else 2e-5
        assert np.abs(theirs - expected[::4]).max() < tolerance, name


def other_form(source: Path, target: Path, form: str) -> None:
    """The same model as other files have it: experts' gates joined with up, a delta rule's, or a block that guesses."""
    tensors = {each.name: np.array(each.data) for each in gguf.GGUFReader(source).tensors}
    if form == "gates joined":
        gates = [name for name in tensors if "ffn_gate_exps" in name]
        parts = {name: [tensors[name], tensors[name.replace("gate", "up")]] for name in gates}
        joined = {name.replace("gate", "gate_up"): np.concatenate(pair, axis=1) for name, pair in parts.items()}
        rewritten(
            source, target, {}, {**{f: None for name in gates for f in (name, name.replace("gate", "up"))}, **joined}
        )
    elif form == "delta joined":
        changed: dict[str, Any] = {}
        for name in [name for name in tensors if name.endswith("ssm_ba.weight")]:
            layer = name.removesuffix("ssm_ba.weight")
            (qkv, z), keys = (tensors[f"{layer}{end}.weight"] for end in ("attn_qkv", "attn_gate")), 2 * 16
            parts = [part.reshape(2, -1, 64) for part in (qkv[:keys], qkv[keys : 2 * keys], qkv[2 * keys :], z)]
            changed |= {f"{layer}attn_qkv.weight": None, f"{layer}attn_gate.weight": None}
            changed[f"{layer}ssm_in.weight"] = np.concatenate(parts, axis=1).reshape(-1, 64)
        rewritten(source, target, {}, changed)
    elif form == "keys apart":
        changed = {}
        for name in [name for name in tensors if name.endswith("attn_kv_b.weight")]:
            keys, values = np.split(tensors[name].reshape(4, -1, 32), [16], axis=1)
            changed |= {
                name: None,
                name.replace("kv_b", "k_b"): keys.swapaxes(1, 2),
                name.replace("kv_b", "v_b"): values,
            }
        lengths = {
            "head_count_kv": 1,
            "key_length": 40,
            "value_length": 32,
            "key_length_mla": 24,
            "value_length_mla": 16,
        }
        rewritten(source, target, {f"deepseek2.attention.{key}": length for key, length in lengths.items()}, changed)
    else:
        name = "qwen35moe" if "blk.0.ssm_alpha.weight" in tensors else "qwen35"
        more = {key.replace("blk.1.", "blk.5."): values for key, values in tensors.items() if key.startswith("blk.1.")}
        width = tensors["blk.0.attn_norm.weight"].shape[0]
        more["blk.5.nextn.eh_proj.weight"] = np.ones((width, 2 * width), np.float32)
        more |= {
            f"blk.5.nextn.{end}.weight": np.ones(width, np.float32) for end in ("enorm", "hnorm", "shared_head_norm")
        }
        rewritten(source, target, {f"{name}.block_count": 6, f"{name}.nextn_predict_layers": 1}, more)


OTHER_FORMS = [("qwen35moe", "gates joined"), ("qwen3next", "delta joined"), ("qwen35moe", "guessing")]
OTHER_FORMS += [("deepseek2", "keys apart"), ("deepseek2, softmax", "keys apart")]


@each_case(("name", "form"), OTHER_FORMS)
def test_other_forms_of_files_hold_the_same_model(path: Path, tmp_path: Path, name: str, form: str) -> None:
    made = written(path, random_checkpoint(CONFIGS[name], seed=5))
    other_form(path, tmp_path / "other.gguf", form)
    found = read_gguf(tmp_path / "other.gguf")
    assert found.config == made.config
    for tensor in weight_shapes(made.config):
        assert np.array_equal(found.floats(tensor), made.floats(tensor)), tensor


def test_keys_apart_without_their_values_are_refused(path: Path, tmp_path: Path) -> None:
    written(path, random_checkpoint(CONFIGS["deepseek2"], seed=5))
    other_form(path, tmp_path / "other.gguf", "keys apart")
    for changed in (None, np.zeros((4, 16, 31), np.float32)):
        rewritten(tmp_path / "other.gguf", path, {}, {"blk.1.attn_v_b.weight": changed})
        with pytest.raises(FormatError, match=r"'blk.1.attn_k_b.weight' has shape \[4, 32, 16\], and attn_v_b"):
            read_gguf(path)


def test_rows_by_heads_of_keys_stay_in_their_blocks(path: Path, tmp_path: Path) -> None:
    made = random_checkpoint(CONFIGS["qwen3next"], seed=5)
    first = written(path, made, dtype="q8_0")
    second = written(tmp_path / "again.gguf", first, dtype=None)
    at = "model.layers.0"
    for name in (f"{at}.linear_attn.in_proj_a.weight", f"{at}.linear_attn.in_proj_b.weight"):
        assert np.abs(first.floats(name) - made.tensors[name]).max() <= 2**-7 * np.abs(made.tensors[name]).max()
        assert np.array_equal(second.packed[name].blocks, first.packed[name].blocks)
    shared = f"{at}.mlp.shared_expert_gate.weight"
    assert first.formats()[shared] == "F32"
    assert read_gguf_file(path).tensors["blk.0.ffn_gate_inp_shexp.weight"].shape == (64,)


@pytest.mark.slow
@each_case(("name", "form"), OTHER_FORMS)
def test_llama_cpp_reads_other_forms_alike(path: Path, tmp_path: Path, name: str, form: str) -> None:
    made = written(path, random_checkpoint(COMPARED[name], seed=5, scale=0.1))
    other_form(path, tmp_path / "other.gguf", form)
    assert np.abs(llama_logits(tmp_path / "other.gguf", IDS)[-1] - logits_of(made, IDS)).max() < 2e-5


@pytest.mark.slow
def test_llama_cpp_bounds_gates_alike(path: Path) -> None:
    """Gates and what they multiply are so large here that bounds show, and sinks take most of a softmax."""
    made = random_checkpoint(COMPARED["gpt-oss"], seed=5, scale=0.1)
    larger = {"gate_proj.weight": 60, "up_proj.weight": 60, "sinks.weight": 30}
    tensors = {
        key: values * np.float32(next((by for end, by in larger.items() if key.endswith(end)), 1))
        for key, values in made.tensors.items()
    }
    made = dataclasses.replace(made, tensors=tensors)
    found = written(path, made)
    expected = logits_of(made, IDS)
    free = dataclasses.replace(made, config=dataclasses.replace(made.config, swiglu_limit=1e6))
    assert np.abs(logits_of(free, IDS) - expected).max() > 0.1
    tolerance = 1e-5 * np.ptp(expected)
    assert np.abs(llama_logits(path, IDS)[-1] - expected).max() < tolerance
    assert np.abs(logits_of(found, IDS) - expected).max() < tolerance


@each_case("dtype", [name for name in DTYPES if name not in ("float32", *SEARCHED)])
@each_case("name", ["gab", "llama"])
def test_the_logits_of_every_dtype_are_those_of_llama_cpp(path: Path, name: str, dtype: str) -> None:
    made = random_checkpoint(COMPARED[name], seed=5, scale=0.1)
    expected = logits_of(written(path, made, dtype=dtype), IDS)[::4]
    theirs = np.array(recorded("llama_logits")[f"{name}, {dtype}"])
    # llama.cpp rounds activations too, to the 16 or 8 bits of the weights.
    assert np.abs(theirs - expected).max() < (0.03 if "float" in dtype else 0.12)


@pytest.mark.slow
@each_case("dtype", SEARCHED)
def test_llama_cpp_reads_blocks_of_256(path: Path, dtype: str) -> None:
    made = random_checkpoint(dataclasses.replace(WIDE, tie_word_embeddings=False), seed=5, scale=0.03)
    expected = logits_of(written(path, made, dtype=dtype), IDS)
    theirs = llama_logits(path, IDS)[-1]
    assert np.abs(theirs - expected).max() < 0.12, "it rounds activations too, to 8 bits"
    assert np.abs(theirs - logits_of(made, IDS)).max() > 1e-4


# Vocabularies


TEXTS = [
    "First Citizen: what, ho!\n\nSpeak  now.  Thou",
    "It's the king's   own.\n\n\nKING I'LL go \t\r\n",
    "é → 中文 <|user|>hi<|end|><|assistant|>",
]
MORE_TEXTS = [*TEXTS, "in 2024-12-25 x1y22z333"]


def json_tokenizer(cut: str) -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE(ignore_merges=cut == "llama-bpe"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=cut == "gpt-2")
    if cut == "gpt-2":
        made.pre_tokenizer = byte_level
    else:
        split = pre_tokenizers.Split(tokenizers.Regex(EXPRESSIONS[cut][0]), "isolated")
        made.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    if cut == "qwen2":
        made.normalizer = normalizers.NFC()
    special = ["<|endoftext|>", "<|user|>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        TEXTS * 3, trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=special)
    )
    if cut == "llama-bpe":
        made.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", 1)])
    return made


@each_case("cut", ["gpt-2", "llama-bpe", "qwen2"])
def test_a_tokenizer_json(path: Path, cut: str) -> None:
    theirs = written_json(path, cut)
    found = Tokenizer.from_file(path)
    for text in MORE_TEXTS:
        assert found.encode(text) == theirs.encode(text).ids


def written_json(path: Path, cut: str) -> tokenizers.Tokenizer:
    theirs = json_tokenizer(cut)
    rows = theirs.get_vocab_size() + 3
    made = random_checkpoint(dataclasses.replace(CONFIGS["gpt2"], vocab_size=rows))
    write_gguf(made, path, tokenizer=json.loads(theirs.to_str()))
    metadata = read_gguf_file(path).metadata
    assert metadata["tokenizer.ggml.pre"] == cut
    assert metadata["tokenizer.ggml.tokens"][-1] == f"[PAD{rows - 1}]"
    assert metadata["tokenizer.ggml.token_type"] == [3, 3, *[1] * (rows - 5), *[5] * 3]
    return theirs


def written_bpe1(path: Path) -> BpeModel:
    control = ["<|user|>", "<|end|>", "<|assistant|>"]
    merges = learn_bpe(TEXTS[:2] * 3, 330, control)
    made = random_checkpoint(dataclasses.replace(GAB, vocab_size=len(merges.vocabulary)))
    write_gguf(made, path, tokenizer=merges)
    assert set(control) == set(Tokenizer(merges).control_tokens)
    return merges


def test_a_bpe1_vocabulary(path: Path) -> None:
    """Read as llama.cpp reads it, which test_gguf_tokenizer.py compares with recorded ids."""
    merges = written_bpe1(path)
    ours, theirs = Tokenizer(merges), Tokenizer.from_file(path)
    for text, special in itertools.product(TEXTS, (True, False)):
        assert theirs.encode(text, allow_special=special) == ours.encode(text, allow_special=special)
    assert [theirs.token_bytes(token) for token in range(len(merges.vocabulary))] == list(merges.vocabulary)


@pytest.mark.slow
def test_llama_cpp_reads_vocabularies(path: Path) -> None:
    ours = Tokenizer(written_bpe1(path))
    assert llama_ids(path, TEXTS) == [ours.encode(text) for text in TEXTS]
    for cut in ("gpt-2", "llama-bpe", "qwen2"):
        theirs = written_json(path, cut)
        assert llama_ids(path, MORE_TEXTS) == [theirs.encode(text).ids for text in MORE_TEXTS], cut


def test_vocabularies_that_do_not_fit(path: Path) -> None:
    made = random_checkpoint(GAB)
    few = BpeModel(((65, 66, 256),), (*(bytes([value]) for value in range(256)), b"AB"))
    with pytest.raises(InputError, match="the tokenizer has 257 tokens, the model 96"):
        write_gguf(made, path, tokenizer=few)
    wide = random_checkpoint(dataclasses.replace(GAB, vocab_size=400))
    values = json.loads(json_tokenizer("gpt-2").to_str())
    for damage, words in (
        ({"pre_tokenizer": None}, "it does not cut text into bytes"),
        ({"normalizer": {"type": "NFKC"}}, r"its normalizer \(NFKC\) does not match"),
        ({"normalizer": {"type": "Lowercase"}}, r"its normalizer \(Lowercase\) does not match"),
        ({"model": {**values["model"], "type": "X"}}, "its model is X"),
    ):
        with pytest.raises(InputError, match=f"llama.cpp has no such tokenizer: {words}.*; expected SentencePiece's"):
            write_gguf(wide, path, tokenizer={**values, **damage})
    with pytest.raises(InputError, match=r"the tokenizer is not the contents of a tokenizer.json"):
        write_gguf(wide, path, tokenizer={"version": "1.0"})
    assert not path.exists()


@each_case(("family", "normed"), [("qwen3_moe", False), ("olmoe", True)])
def test_weights_of_experts_that_an_architecture_does_not_compute_are_refused(
    path: Path, family: str, normed: bool
) -> None:
    made = random_checkpoint(config(family, num_experts=3, norm_topk_prob=normed), seed=5)
    with pytest.raises(InputError, match=f"experts.normed is {normed}, but {not normed} in the architecture"):
        write_gguf(made, path)

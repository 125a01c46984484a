"""GGUF files that web/drop opens, against Python: weights bit for bit, plans, tokenizers, sentences about bad files."""

from __future__ import annotations

import json
import random
import shutil
import struct
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from goldens.gguf_models import GEMMA3, LLAMA3, byte_level, piece_level, unigram, vocabularies
from safetensors.numpy import load_file
from small_models import split_gguf
from template_models import CHATML

from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.engine.loading import read_model
from glinfer.errors import ConfigError, FormatError, InputError
from glinfer.export import drop
from glinfer.export.drop import CONTEXT as CONTEXT_OF_PROGRAMS
from glinfer.export.drop import changes, export_drop, published_shapes
from glinfer.export.site import LIMITS, laid_out, web_kernels
from glinfer.export.texts import continued_texts, library_entry
from glinfer.formats import random_checkpoint, save_checkpoint
from glinfer.formats.gguf.file import read_gguf_part
from glinfer.lower.plain.decoder import LOGITS
from glinfer.lower.plans import weights_for
from glinfer.lower.weights.recipe import weight_name
from glinfer.program.session import weight_matrix
from glinfer.text.tokenizer import find_tokenizer
from tests.goldens import smollm2_file

HERE = Path(__file__).resolve().parent
SIZES: dict[str, Any] = {
    "vocab_size": 300, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
    "intermediate_size": 160, "max_position_embeddings": 96, "hidden_act": "silu", "layer_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}  # fmt: skip
WIDE = {**SIZES, "hidden_size": 256, "intermediate_size": 256, "head_dim": 64}
CONFIGS = {
    "llama": ModelConfig(**SIZES, model_type="llama"),
    "padded heads": ModelConfig(**{**SIZES, "hidden_size": 96, "head_dim": 24}, model_type="llama"),
    "scaled angles": ModelConfig(**{**SIZES, "num_hidden_layers": 1}, model_type="llama", rope_scaling=LLAMA3),
    "own head": ModelConfig(**{**SIZES, "vocab_size": 128, "tie_word_embeddings": False}, model_type="llama"),
    "qwen2": ModelConfig(**SIZES, model_type="qwen2", attention_bias=True),
    "qwen3": ModelConfig(**{**SIZES, "num_key_value_heads": 1, "head_dim": 32}, model_type="qwen3"),
    "gemma3": ModelConfig(
        **{**WIDE, "hidden_act": "gelu_new", **GEMMA3, "sliding_window": 16, "model_type": "gemma3_text"}
    ),
    "wide": ModelConfig(**WIDE, model_type="llama", rope_theta=5e5),
    "deep": ModelConfig(**{**SIZES, "num_hidden_layers": 4, "num_key_value_heads": 4}, model_type="llama"),
    "pattern": ModelConfig(
        **{**SIZES, "hidden_act": "gelu_new", "num_hidden_layers": 7}, model_type="gemma2", sliding_window=16,
        layer_types=("sliding_attention", "full_attention"), attn_logit_softcapping=50.0, final_logit_softcapping=30.0,
    ),
}  # fmt: skip
ANGLES = {"rope_theta": 25000.0}
OTHERS = {
    "theta": (replace(CONFIGS["llama"], **ANGLES), "q8_0"),
    "factors": (
        replace(CONFIGS["scaled angles"], rope_scaling=tuple({**LLAMA3, "factor": 4.0}.items()), **ANGLES),
        "q8_0",
    ),
    "3 blocks": (replace(CONFIGS["deep"], num_hidden_layers=3), "q8_0"),
    "7 blocks": (replace(CONFIGS["deep"], num_hidden_layers=7, vocab_size=302), "q4_0"),
    "more tokens": (replace(CONFIGS["deep"], vocab_size=333, **ANGLES), "float16"),
    "11 blocks": (replace(CONFIGS["pattern"], num_hidden_layers=11), "q8_0"),
}
"""Files of a shape with another base of angles, factors, number of blocks or vocabulary."""
FILES = [
    *(("llama", "q4_0"), ("padded heads", "q5_0"), ("scaled angles", "float16"), ("own head", "q4_1")),
    *(("qwen2", "q5_1"), ("qwen3", "q8_0"), ("gemma3", "q6_k"), ("wide", "q4_k"), ("wide", "q5_k")),
    *(("qwen2", "bfloat16"), ("qwen3", "float32")),
]
CONTEXT, SMOL = 64, "SmolLM2 135M"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site for all these shapes."""
    return export_drop(
        tmp_path_factory.mktemp("drop") / "site", context=CONTEXT, shapes=CONFIGS, vocabularies={"deep": (302, 333)}
    ).folder


def opened(site: Path, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What the page's modules make of files, see dropped.mjs."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no Node.js; 'make test-web' installs it where it may")
    command, given = [node, str(HERE / "dropped.mjs"), str(site)], json.dumps(list(jobs))
    ran = subprocess.run(command, input=given, capture_output=True, text=True, timeout=500, check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return [json.loads(line) for line in ran.stdout.splitlines()]


def check_weights(path: Path, made: dict[str, Any], folder: Path) -> None:
    """Compare the weights that were made, and their draws, with Python's in ``--weights q8``."""
    assert "error" not in made, made
    plan = made["plan"]
    _, checkpoint = read_model(path, context=plan["model"]["config"]["max_position_embeddings"])
    limits = replace(LIMITS["usual"], max_texture_size=max(4096, plan["requires"]["max_texture_size"]))
    config, formats = checkpoint.config, checkpoint.formats()
    _, export = laid_out(config, formats, "fast", "q8", "f32", web_kernels("q8"), limits)
    expected = json.loads(json.dumps(export.tables()))
    assert {key: plan[key] for key in expected} == expected
    found, arrays, sums = load_file(folder / "weights.safetensors"), weights_for(checkpoint, "fast", "q8"), []
    for tensor in export.weights:
        texels = np.ascontiguousarray(export.layout(tensor.name).pack(weight_matrix(tensor, arrays)))
        assert found[tensor.name].shape == texels.shape
        assert np.array_equal(found[tensor.name].view(np.uint8), texels.view(np.uint8)), tensor.name
        sums.append(len(texels))
    assert sum(sums) == len(found["line_checksums"])
    assert np.array_equal(found["logits_order"], export.logits(LOGITS)[1])


def test_weights_and_plans_are_those_of_python(site: Path, tmp_path: Path) -> None:
    jobs, files = [], [*((CONFIGS[name], dtype) for name, dtype in FILES), *OTHERS.values()]
    for number, (config, dtype) in enumerate(files):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_checkpoint(random_checkpoint(config, number), folder / "model.gguf", dtype=dtype)
        jobs.append({"file": str(folder / "model.gguf"), "out": str(folder)})
    for job, made in zip(jobs, opened(site, jobs), strict=True):
        check_weights(Path(job["file"]), made, Path(job["out"]))


def write_model(path: Path, vocabulary: dict[str, Any], seed: int = 0) -> Path:
    """A small Llama with a vocabulary, padded to the rows of the program for it."""
    rows = len(vocabulary["tokenizer.ggml.tokens"])
    save_checkpoint(random_checkpoint(replace(CONFIGS["llama"], vocab_size=rows), seed), path, dtype="q8_0",
                    tokenizer=vocabulary)  # fmt: skip
    return path


def test_tokenizers_and_templates_are_those_of_python(tmp_path: Path) -> None:
    chat = {"tokenizer.chat_template": CHATML, "tokenizer.ggml.add_bos_token": True}
    metadata = [
        byte_level("smollm"), {**byte_level("qwen2"), **chat}, byte_level("llama-bpe"),
        piece_level(), {**piece_level(add_space_prefix=False), **chat}, unigram(), vocabularies()["pieces, merges"],
    ]  # fmt: skip
    sizes = {len(each["tokenizer.ggml.tokens"]) for each in metadata}
    shapes = {str(size): replace(CONFIGS["llama"], vocab_size=size) for size in sizes}
    site = export_drop(tmp_path / "site", context=CONTEXT, shapes=shapes).folder
    jobs, expected = [], []
    for number, vocabulary in enumerate(metadata):
        path = write_model(tmp_path / f"{number}.gguf", vocabulary)
        _, checkpoint = read_model(path)
        tokenizer, _ = find_tokenizer(path, None, checkpoint.config)
        assert tokenizer is not None
        entry = library_entry(tokenizer)
        expected.append((entry, continued_texts(path, None, checkpoint)[0].about))
        jobs.append({"file": str(path), "out": str(tmp_path), "probes": entry["probes"]})
    for made, (entry, about) in zip(opened(site, jobs), expected, strict=True):
        assert "error" not in made, made
        same = ("kind", "characters", "pieces", "control", "prefix", "before", "after")
        assert {key: made["tokenizer"][key] for key in same} == {key: entry[key] for key in same}
        model, chat = made["plan"]["model"], about.pop("chat")
        if chat is not None:
            assert {**model["chat"], "probes": None, "clock": None} == {**chat, "probes": None, "clock": None}
        assert {key: model[key] for key in about} == json.loads(json.dumps(about))


def damaged_headers(data: bytes) -> list[bytes]:
    """Headers that are wrong in many ways."""
    chance, end = random.Random(5), len(data)
    counts = [struct.pack("<QQ", *each) for each in ((1 << 63, 1), (3, 1 << 16), (70000, 70000), (2, 1 << 64 - 1))]
    found = [
        b"", b"GGUF", bytes(64), random.Random(1).randbytes(4096), b"GGUF" + struct.pack(">I", 3) + data[8:],
        b"GGUF" + struct.pack("<I", 9) + data[8:], *(data[:8] + each + data[24:] for each in counts),
        *(data[: end * part // 40] for part in range(1, 40)),
    ]  # fmt: skip
    for _ in range(150):
        changed = bytearray(data)
        for _ in range(chance.choice((1, 1, 2, 8))):
            changed[chance.randrange(24, 1500)] = chance.choice((0, 1, 7, 8, 9, 127, 128, 255))
        found.append(bytes(changed))
    return found


def test_damaged_headers_get_the_sentence_of_python(site: Path, tmp_path: Path) -> None:
    save_checkpoint(random_checkpoint(CONFIGS["qwen2"]), tmp_path / "good.gguf", dtype="q8_0")
    jobs, expected = [], []
    for number, data in enumerate(damaged_headers((tmp_path / "good.gguf").read_bytes())):
        path = tmp_path / f"{number}.gguf"
        path.write_bytes(data)
        jobs.append({"file": str(path), "header": True})
        try:
            read_gguf_part(path)
            expected.append(None)
        except (FormatError, InputError) as error:
            expected.append(str(error).partition(f"{path.name}: ")[2])
    found = [each.get("error") for each in opened(site, jobs)]
    assert sum(each is not None for each in expected) > 80
    words = [each and each.partition(".gguf: ")[2] for each in found]
    assert [pair for pair in zip(words, expected, strict=True) if pair[0] != pair[1]] == []


def test_a_model_in_parts_is_the_whole_one(site: Path, tmp_path: Path) -> None:
    whole, folders = tmp_path / "model.gguf", [tmp_path / str(number) for number in range(6)]
    save_checkpoint(random_checkpoint(CONFIGS["llama"], 1), whole, dtype="q8_0")
    parts = [tmp_path / f"model-0000{number}-of-00003.gguf" for number in (1, 2, 3)]
    for path, data in zip(parts, split_gguf(whole.read_bytes(), 3), strict=True):
        path.write_bytes(data)
    other = tmp_path / "other-00002-of-00003.gguf"
    other.write_bytes(parts[1].read_bytes())
    (tmp_path / "renamed.gguf").write_bytes(parts[0].read_bytes())
    cases: list[list[Path]] = [
        [whole], parts[::-1], parts[:2], [*parts, other], [tmp_path / "renamed.gguf", *parts[1:]], [whole, other],
    ]  # fmt: skip
    jobs = []
    for folder, files in zip(folders, cases, strict=True):
        folder.mkdir()
        jobs.append({"file": list(map(str, files)), "out": str(folder)})
    one, several, *refused = opened(site, jobs)
    assert {**one["plan"]["model"], "why": None} == {**several["plan"]["model"], "why": None}
    assert one["plan"]["files"]["fingerprint"] != several["plan"]["files"]["fingerprint"]
    weights = [(folder / "weights.safetensors").read_bytes() for folder in folders[:2]]
    assert weights[0] == weights[1]
    expected = (
        "this is part 1 of 3 of a model; found no model-00003-of-00003.gguf; choose all parts together",
        "this is part 1 of 3 of a model, and other-00002-of-00003.gguf does not belong to it",
        "expected a name that ends in -00001-of-00003.gguf, by which the others are found; restore its name",
        "this is a whole model, and 2 files were chosen; choose one, or all parts of one",
    )
    for found, words in zip(refused, expected, strict=True):
        assert words in found["error"]


def test_unsupported_files_get_one_sentence(site: Path, tmp_path: Path) -> None:
    files = {
        "gpt2": (
            ModelConfig(**SIZES | {"num_key_value_heads": 4, "hidden_act": "gelu_new"}, model_type="gpt2"),
            "q8_0",
        ),
        "shape": (replace(CONFIGS["llama"], intermediate_size=192), "q8_0"),
        "norms": (replace(CONFIGS["llama"], layer_norm_eps=1e-6), "q8_0"),
        "blocks": (replace(CONFIGS["llama"], num_hidden_layers=3), "q8_0"),
        "group": (replace(CONFIGS["pattern"], num_hidden_layers=8), "q8_0"),
        "yarn": (replace(CONFIGS["qwen2"], rope_scaling=(("factor", 2.0), ("rope_type", "yarn"))), "q8_0"),
        "vocabulary": (replace(CONFIGS["deep"], vocab_size=301), "q8_0"),
        "type": (CONFIGS["llama"], "iq4_nl"),
        "infinite": (CONFIGS["llama"], "float16"),
    }
    jobs = []
    for name, (config, dtype) in files.items():
        save_checkpoint(random_checkpoint(config), tmp_path / f"{name}.gguf", dtype=dtype)
        jobs.append({"file": str(tmp_path / f"{name}.gguf"), "out": str(tmp_path)})
    path = tmp_path / "infinite.gguf"
    infinite, first = path.read_bytes(), read_gguf_part(path).tensors["blk.1.ffn_up.weight"].data[:16].tobytes()
    path.write_bytes(infinite.replace(first, b"\x00\x7c" + first[2:]))
    words = [each["error"] for each in opened(site, jobs)]
    expected = [
        "found architecture 'gpt2', which is not supported here; expected one of: llama, qwen2, qwen3, gemma3",
        "its shape (llama: embedding_length 64, block_count 2, feed_forward_length 192, attention.head_count 4, "
        "attention.head_count_kv 2) has no program here",
        "llama.attention.layer_norm_rms_epsilon is 0.000001; expected 0.00001, as in llama",
        "its shape (llama: embedding_length 64, block_count 3, feed_forward_length 160",
        "its shape (gemma2: embedding_length 64, block_count 8, feed_forward_length 160",
        "qwen2.rope.scaling.type is 'yarn'; expected 'none' or 'linear', as in qwen2",
        "llama.vocab_size is 301; expected 300 or 302 or 333",
        "tensor 'token_embd.weight' is IQ4_NL, which is not supported here; known: F32, F16, BF16, Q4_0",
        "is NaN or infinite",
    ]
    for found, wanted in zip(words, expected, strict=True):
        assert wanted in found
        assert "\n" not in found


def test_differences_of_documents() -> None:
    one, other = {"a": [1, {"b": 2}], "c": 1}, {"a": [1, {"b": 3}], "c": [1]}
    assert list(changes(one, other)) == [(["a", 1, "b"], 3), (["c"], [1])]
    assert list(changes(one, one)) == []


def test_a_context_or_a_cache_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="there is no cache format"):
        export_drop(tmp_path / "site", cache="q9")
    with pytest.raises(ConfigError, match="the context is 0"):
        export_drop(tmp_path / "site", context=0, shapes={SMOL: published_shapes()[SMOL]})


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = str(tmp_path / "site")
    for given, words in (
        (["--drop", "model", out], "found two names"),
        (["--drop", out, "--weights", "q8"], "found --weights; --drop takes only --cache, --context and --json"),
        (["--drop", out, "--cache", "q8", "--single-file"], "found --single-file; --drop takes only"),
        (["--drop", out, "--context", "0"], "the context is 0"),
        (["shakespeare"], "Missing argument 'OUT'"),
    ):
        assert run(["export-web", *given]) == 2
        assert words in capsys.readouterr().err
    monkeypatch.setattr(drop, "published_shapes", lambda: {"small": CONFIGS["qwen3"]})
    assert run(["export-web", "--drop", out, "--context", "32", "--cache", "q8", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["shapes"] == ["small"]
    (entry,) = json.loads((tmp_path / "site" / "plan.json").read_text())["drop"]["shapes"]
    assert entry["context"] == 32
    assert run(["export-web", "--drop", out]) == 0, "an earlier export is not replaced"
    assert run(["export-web", "--drop", str(tmp_path / "a site")]) == 0
    assert capsys.readouterr().out.endswith(f"glinfer serve-web '{tmp_path / 'a site'}'\n")


@pytest.mark.slow
def test_programs_of_published_shapes_are_the_plans_of_python(tmp_path: Path) -> None:
    """Each plan with all its blocks, for files whose tensors have no bytes."""
    shapes = published_shapes()
    site = export_drop(tmp_path / "site", shapes=shapes, vocabularies={}).folder
    entries = {each["name"]: each for each in json.loads((site / "plan.json").read_text())["drop"]["shapes"]}
    jobs = []
    for name, shape in shapes.items():
        entry = entries[name]
        assert entry["context"] == min(CONTEXT_OF_PROGRAMS, shape.max_position_embeddings)
        assert entry["bytes"]["weights"] < entry["bytes"]["all"] < 6e9
        jobs.append(
            {"program": entry["file"], "architecture": entry["architecture"], "blocks": shape.num_hidden_layers}
        )
    for (name, shape), made in zip(shapes.items(), opened(site, jobs), strict=True):
        config = shape.with_context(entries[name]["context"])
        size = made["plan"]["requires"]["max_texture_size"]
        embeddings = {weight_name(shape.family.names.embeddings): "Q8_0"}
        limits = replace(LIMITS["usual"], max_texture_size=max(4096, size))
        _, export = laid_out(config, embeddings, "fast", "q8", "f32", web_kernels("q8"), limits)
        expected = json.loads(json.dumps(export.tables()))
        assert {key: made["plan"][key] for key in expected} == expected, name
        assert sum(each["width"] * each["height"] for each in expected["textures"]) > 0
        assert made["plan"]["model"]["draws_per_token"] == len(expected["draws"])


@pytest.mark.slow
def test_the_weights_of_a_published_file(tmp_path: Path) -> None:
    path = smollm2_file()
    site = export_drop(tmp_path / "site", shapes={SMOL: published_shapes()[SMOL]}).folder
    (made,) = opened(site, [{"file": str(path), "out": str(tmp_path)}])
    check_weights(path, made, tmp_path)
    assert made["plan"]["model"]["chat"]["stop_ids"] == [2, 0]

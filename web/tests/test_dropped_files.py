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
from goldens.gguf_models import GEMMA3, LLAMA3, byte_level, piece_level
from safetensors.numpy import load_file
from template_models import CHATML

from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.engine.loading import read_model
from glinfer.errors import ConfigError, FormatError, InputError
from glinfer.export import drop
from glinfer.export.drop import CONTEXT as CONTEXT_OF_PROGRAMS
from glinfer.export.drop import Program, changes, export_drop, published_shapes
from glinfer.export.site import LIMITS, laid_out, web_kernels
from glinfer.export.texts import continued_texts, library_entry
from glinfer.formats import random_checkpoint, save_checkpoint
from glinfer.formats.gguf.file import read_gguf_part
from glinfer.lower.plain.decoder import LOGITS
from glinfer.lower.plans import weights_for
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
}
FILES = [
    *(("llama", "q4_0"), ("padded heads", "q5_0"), ("scaled angles", "float16"), ("own head", "q4_1")),
    *(("qwen2", "q5_1"), ("qwen3", "q8_0"), ("gemma3", "q6_k"), ("wide", "q4_k"), ("wide", "q5_k")),
    *(("qwen2", "bfloat16"), ("qwen3", "float32")),
]
CONTEXT, SMOL = 64, "SmolLM2 135M"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site for all these shapes."""
    return export_drop(tmp_path_factory.mktemp("drop") / "site", context=CONTEXT, shapes=CONFIGS).folder


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
    jobs = []
    for number, (name, dtype) in enumerate(FILES):
        folder = tmp_path / str(number)
        folder.mkdir()
        save_checkpoint(random_checkpoint(CONFIGS[name], number), folder / "model.gguf", dtype=dtype)
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
    vocabularies = [
        byte_level("smollm"), {**byte_level("qwen2"), **chat}, byte_level("llama-bpe"),
        piece_level(), {**piece_level(add_space_prefix=False), **chat},
    ]  # fmt: skip
    sizes = {len(each["tokenizer.ggml.tokens"]) for each in vocabularies}
    shapes = {str(size): replace(CONFIGS["llama"], vocab_size=size) for size in sizes}
    site = export_drop(tmp_path / "site", context=CONTEXT, shapes=shapes).folder
    jobs, expected = [], []
    for number, vocabulary in enumerate(vocabularies):
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


def test_unsupported_files_get_one_sentence(site: Path, tmp_path: Path) -> None:
    files = {
        "gpt2": (
            ModelConfig(**SIZES | {"num_key_value_heads": 4, "hidden_act": "gelu_new"}, model_type="gpt2"),
            "q8_0",
        ),
        "shape": (replace(CONFIGS["llama"], intermediate_size=192), "q8_0"),
        "theta": (replace(CONFIGS["llama"], rope_theta=2e4), "q8_0"),
        "yarn": (replace(CONFIGS["qwen2"], rope_scaling=(("factor", 2.0), ("rope_type", "yarn"))), "q8_0"),
        "factors": (replace(CONFIGS["scaled angles"], rope_scaling=tuple({**LLAMA3, "factor": 4.0}.items())), "q8_0"),
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
        "llama.rope.freq_base is 20000; expected 10000, as in llama",
        "qwen2.rope.scaling.type is 'yarn'; expected 'none' or 'linear', as in qwen2",
        "tensor 'rope_freqs.weight' has other factors than the published model",
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
        (["--drop", out, "--weights", "q8"], "found weights; --drop takes only --cache, --context and --json"),
        (["--drop", out, "--cache", "q8", "--single-file"], "found single; --drop takes only"),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", published_shapes())
def test_every_published_shape_has_a_program(name: str) -> None:
    shape = published_shapes()[name]
    program = Program(name, shape)
    entry, contents = program.entry(), program.contents()
    assert entry["context"] == CONTEXT_OF_PROGRAMS
    assert entry["bytes"]["weights"] < entry["bytes"]["all"] < 3e9
    kinds = [step["kind"] for step in contents["weights"]]
    assert kinds.count("product") == 4 * shape.num_hidden_layers + 1
    assert len(json.dumps(contents)) < 1e6


@pytest.mark.slow
def test_the_weights_of_a_published_file(tmp_path: Path) -> None:
    path = smollm2_file()
    site = export_drop(tmp_path / "site", shapes={SMOL: published_shapes()[SMOL]}).folder
    (made,) = opened(site, [{"file": str(path), "out": str(tmp_path)}])
    check_weights(path, made, tmp_path)
    assert made["plan"]["model"]["chat"]["stop_ids"] == [2, 0]

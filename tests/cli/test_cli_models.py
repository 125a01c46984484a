"""The command line on models of other families: directories, GGUF files, manifests and shapes; good input and bad."""

from __future__ import annotations

import dataclasses
import io
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from safetensors.numpy import save_file
from tiers import tiered
from tokenizers import decoders, models, pre_tokenizers, trainers

import glinfer
from glinfer.cli.app import run
from glinfer.config import ModelConfig
from glinfer.engine.random_model import demo_tokenizer
from glinfer.formats import (
    Checkpoint,
    load_checkpoint,
    random_checkpoint,
    write_bpe,
    write_gab,
    write_gguf,
)
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
SHAPE = "family=llama,vocab=300,dim=32,heads=4,kv_heads=2,blocks=2,context=64,inner=64"
ABOUT_1B = "family=llama,blocks=16,heads=32,kv_heads=8,dim=2048,inner=8192,vocab=128256,context=131072"
DRAWS = 6 * 2 + 3
"""Draws a token of every model here."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 300,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "max_position_embeddings": 64,
    "intermediate_size": 64,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant{{ '\\n' }}"
)
TEXT = "the cat sat on the mat and the dog ran to the cat. Once upon a time there was a hen"
RESERVED = ["<|assistant|>", "<|user|>", "<|end|>"]


def llama() -> Checkpoint:
    return random_checkpoint(ModelConfig.from_options(SHAPE), seed=3)


def vocabulary() -> dict[str, Any]:
    """What the ``tokenizer.json`` of a byte-level BPE of 298 tokens holds."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=298, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    made.train_from_iterator([TEXT] * 3, trainer)
    values: dict[str, Any] = json.loads(made.to_str())
    return values


def write_directory(folder: Path) -> None:
    folder.mkdir()
    tensors = {name: np.ascontiguousarray(array) for name, array in llama().tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG), "utf-8")
    (folder / "tokenizer.json").write_text(json.dumps(vocabulary()), "utf-8")
    told = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(told), "utf-8")


def write_gift(folder: Path) -> None:
    """A second-generation Gab with its rows in int8, and its own tokenizer."""
    folder.mkdir()
    merges, pieces = [], [bytes([value]) for value in range(256)]
    for text in RESERVED:
        for end in range(2, len(text) + 1):
            if text[:end].encode() not in pieces:
                merges.append([pieces.index(text[: end - 1].encode()), ord(text[end - 1])])
                pieces.append(text[:end].encode())
    (folder / "tokenizer.json").write_text(json.dumps({"reserved": RESERVED, "merges": merges}), "utf-8")
    shape = {
        **{"vocab_size": len(pieces), "max_position_embeddings": 64, "hidden_size": 32, "intermediate_size": 64},
        **{"num_hidden_layers": 2, "num_attention_heads": 4},
    }
    config = ModelConfig(**shape, model_type="gift_of_gab", hidden_act="gelu", tie_word_embeddings=True, mlp_bias=True)
    data, tensors = bytearray(), []

    def added(array: Any) -> dict[str, int]:
        data.extend(array.tobytes())
        return {"offset": len(data) - array.nbytes, "length": array.nbytes}

    for name, array in random_checkpoint(config, seed=5).tensors.items():
        entry: dict[str, Any] = {"name": name.replace("up_proj.bias", "up_bias"), "shape": list(array.shape)}
        if array.ndim == 2:
            scale = (np.abs(array).max(axis=1) / 127).astype("<f4")
            quants = np.rint(array / scale[:, None]).astype(np.int8)
            entry |= {"storage": "q8_rowwise_symmetric", "q": added(quants), "scale": added(scale)}
        else:
            entry |= {"storage": "float32", "data": added(array.astype("<f4"))}
        tensors.append(entry)
    (folder / "model-q8.bin").write_bytes(data)
    manifest = {
        **{"format": "gift-of-gab-q8", "format_version": 2, "endianness": "little", "byte_length": len(data)},
        **{"architecture": {"model_type": "gift_of_gab", **shape}, "tensors": tensors},
        "files": {"weights": {"file": "model-q8.bin", "length": len(data)}},
    }
    (folder / "model-q8.json").write_text(json.dumps(manifest), "utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model as the directory ``hf``, as ``l.gguf`` and ``q8.gguf``; a Gab ``g.gab``; its successor in ``gift``."""
    pytest.importorskip("gguf")
    made = tmp_path_factory.mktemp("models")
    write_directory(made / "hf")
    write_gguf(llama(), made / "l.gguf", tokenizer=vocabulary())
    write_gguf(llama(), made / "q8.gguf", dtype="q8_0", tokenizer=vocabulary())
    write_gift(made / "gift")
    write_gab(
        random_checkpoint(ModelConfig.from_options("vocab=300,dim=32,heads=4,blocks=2,context=64")), made / "g.gab"
    )
    write_bpe(demo_tokenizer(300), made / "g.bpe")
    (made / "text.txt").write_text(TEXT, "utf-8")
    return made


@pytest.fixture
def glin(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Callable[..., tuple[str, str]]:
    """Runs a command line in the models' directory; returns its output and errors."""
    monkeypatch.chdir(folder)

    def call(line: str, *more: object, status: int = 0) -> tuple[str, str]:
        found = run([*line.split(), *map(str, more)])
        said = capsys.readouterr()
        assert found == status, said.err
        return said.out, said.err

    return call


@pytest.fixture
def told(glin: Any) -> Callable[..., Any]:
    """The same with ``--json``: the document alone, and nothing on standard error."""

    def call(line: str, *more: object) -> Any:
        out, err = glin(line, *more, "--json")
        assert err == ""
        return json.loads(out)

    return call


@pytest.fixture
def refused(glin: Any) -> Callable[..., str]:
    """The one line that a command says when it ends with exit status 2."""

    def call(line: str, *more: object) -> str:
        out, err = glin(line, *more, status=2)
        assert out == ""
        assert err.startswith("glinfer: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        return str(err)

    return call


class TestInfo:
    @pytest.mark.parametrize(
        ("path", "formats"),
        [
            ("hf", {"F32": 21}),
            ("hf/config.json", {"F32": 21}),
            ("q8.gguf", {"F32": 5, "Q8_0": 16}),
            ("gift", {"F32": 7, "Q8_ROW": 13}),
            ("gift/model-q8.json", {"F32": 7, "Q8_ROW": 13}),
        ],
    )
    def test_of_every_kind_of_file(self, told: Any, path: str, formats: dict[str, int]) -> None:
        model = told(f"info {path}")["model"]
        assert (model["formats"], model["draws"], model["fits"]) == (formats, DRAWS, True)
        assert model["config"]["model_type"] == ("gift_of_gab" if "gift" in path else "llama")

    def test_packed_weights_take_less(self, told: Any) -> None:
        floats, packed = (told(f"info {path}")["model"] for path in ("l.gguf", "q8.gguf"))
        assert packed["parameters"] == floats["parameters"] == 37792
        # Blocks are padded to rounds of 128 inputs, of which these rows fill a quarter or a half.
        assert packed["texture_bytes"]["weight"] < 0.7 * floats["texture_bytes"]["weight"]

    def test_a_context_of_ones_own_is_less_cache(self, told: Any) -> None:
        whole, part = (told(f"info hf --context {length}")["model"]["texture_bytes"] for length in (64, 16))
        assert part["cache"] < whole["cache"]


class TestDraws:
    def test_the_file_and_its_shape_have_the_same(self, told: Any) -> None:
        found = [told(f"draws {what}") for what in ("hf", "--config hf/config.json", f"--config {SHAPE}")]
        assert found[0] == found[1] == found[2]
        assert found[0]["draws"] == DRAWS

    @tiered("what", ["q8.gguf --weights file", "gift", "hf --plan reference", f"--config {SHAPE}"])
    def test_a_real_token_issues_as_many(self, told: Any, what: str) -> None:
        found = told(f"draws {what} --measure --tokens 5 --limits webgl2")
        assert found["issued"] == found["draws"]
        assert found["agrees"]

    def test_a_shape_of_a_billion_parameters_needs_no_weights(self, told: Any, refused: Any) -> None:
        found = told(f"draws --config {ABOUT_1B}")
        assert found["draws"] == 6 * 16 + 3
        assert found["config"]["max_position_embeddings"] == 4096, "what is usual for rotary positions"
        for command in ("draws", "verify"):
            assert "largest texture here is 2048×2048" in refused(f"{command} --config {ABOUT_1B} --limits webgl2")


class TestGenerate:
    def test_text_is_the_same_from_every_file_and_plan(self, glin: Any) -> None:
        with glinfer.load("hf") as model:
            expected = model.generate("Once upon", max_tokens=6, temperature=0)
        for what in (
            "hf",
            "hf --plan reference",
            "l.gguf",
            "q8.gguf --weights f16",
            "q8.gguf --weights file --context 16",
        ):
            out, _ = glin(f"generate {what} --max-tokens 6 --temperature 0 -q", "Once upon")
            assert out == expected + "\n", what

    def test_ids(self, told: Any) -> None:
        found = told("generate q8.gguf --ids 5,6,7 --max-tokens 4 --temperature 0 --weights q8")
        with glinfer.load("q8.gguf", weights="q8") as model:
            assert found["ids"] == model.generate([5, 6, 7], max_tokens=4, temperature=0)
        assert (found["weights"], found["draws_per_token"]) == ("q8", DRAWS)

    @pytest.mark.slow
    def test_a_full_context_is_told(self, glin: Any) -> None:
        out, err = glin("generate hf --ids 1,2,3 --context 8 --max-tokens 12 --temperature 0")
        assert out.count(",") == 11
        assert err.startswith("the context of 8 tokens was full")

    @pytest.mark.slow
    def test_batches(self, glin: Any, tmp_path: Path) -> None:
        prompts = tmp_path / "prompts.jsonl"
        prompts.write_text('{"ids": [5, 6, 7]}\n{"prompt": "Once upon", "max_tokens": 2}\n', "utf-8")
        glin("generate hf --max-tokens 4 --temperature 0 --batch", prompts, "--out", tmp_path / "out.jsonl")
        found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
        ids, text = sorted(found, key=lambda line: line["text"] is not None)
        with glinfer.load("hf") as model:
            assert ids["ids"] == model.generate([5, 6, 7], max_tokens=4, temperature=0)
            assert text["text"] == model.generate("Once upon", max_tokens=2, temperature=0)

    @pytest.mark.slow
    def test_a_batch_of_another_context_is_not_gone_on_with(self, glin: Any, tmp_path: Path) -> None:
        prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
        prompts.write_text('{"ids": [5, 6, 7]}\n', "utf-8")
        glin("generate hf/config.json --max-tokens 2 --batch", prompts, "--out", out)
        glin("generate hf/config.json --max-tokens 2 --batch", prompts, "--out", out)
        _, said = glin("generate hf/config.json --context 8 --max-tokens 2 --batch", prompts, "--out", out, status=2)
        assert "its results were made with context null (now 8); give another --out" in said

    def test_a_second_generation_gab_ends_where_its_text_ends(self, glin: Any) -> None:
        with glinfer.load("gift/model-q8.json") as model:
            names = ("<|end|>", "<|endoftext|>")
            ends = [model.require_tokenizer().special_id(name) for name in names]
            assert model._stop_ids == tuple(end for end in ends if end is not None) != ()


class TestChat:
    def typed(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8"))

    def test_in_the_form_of_the_template(
        self, glin: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.typed(monkeypatch, "the cat\n/think\n/quit\n")
        _, err = glin("chat hf --max-tokens 3 --system hen", status=2)
        assert err == "glinfer: this model's chat template decides whether it thinks; chat without asking for it\n"
        expected = "<|im_start|>system\nhen<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
        assert prompts == [Tokenizer.from_file("hf").encode(expected)]

    def test_a_second_generation_gab_in_its_own(
        self, glin: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.typed(monkeypatch, "hen <|end|>\n")
        glin("chat gift/model-q8.json --max-tokens 3")
        ids = Tokenizer.from_file("gift/tokenizer.json")
        user, end, assistant = (ids.control_tokens[f"<|{name}|>"] for name in ("user", "end", "assistant"))
        assert prompts == [[user, *ids.encode("hen <|end|>", allow_special=False), end, assistant]]
        assert prompts[0].count(end) == 1

    @pytest.mark.parametrize(
        ("what", "said"),
        [
            ("hf --think", "chat template decides whether it thinks"),
            ("gift --think", "chat without thinking"),
            ("gift --system hen", "no place for a system prompt"),
            ("l.gguf", "this model cannot chat: it has no chat template"),
        ],
    )
    def test_what_it_cannot_do_is_one_line(self, refused: Any, what: str, said: str) -> None:
        assert said in refused(f"chat {what}")


class TestMeasuring:
    @pytest.mark.slow
    def test_eval(self, told: Any) -> None:
        floats, packed = (told(f"eval {path} --text text.txt") for path in ("hf", "q8.gguf"))
        assert floats["bytes"] == packed["bytes"] > 70
        assert packed["bits_per_byte"] == pytest.approx(floats["bits_per_byte"], rel=1e-3)
        assert floats["bits_per_byte"] != packed["bits_per_byte"]

    def test_eval_of_the_reference_plan_is_refused(self, refused: Any) -> None:
        assert "the reference plan scores no texts of this llama" in refused("eval hf --text text.txt --plan reference")

    @tiered("what", ["q8.gguf", "gift/model-q8.json", f"--config {SHAPE} --weights q8"], keep=0)
    def test_verify(self, told: Any, what: str) -> None:
        [found] = told(f"verify {what} --draws --greedy 5 --tokens 4")["runs"]
        assert found["passed"]
        assert all(texture["identical"] for texture in found["textures"])
        assert len(found["draws"]) == DRAWS + 1, "with that of a shortlist"
        assert found["greedy"]["agreeing"] == 5 == len(found["greedy"]["chosen"])

    @pytest.mark.slow
    def test_bench(self, told: Any) -> None:
        found = told("bench q8.gguf --contexts 8 --runs 1 --weights file,f32")
        assert [row["label"] for row in found["rows"]] == ["glinfer file", "glinfer f32"]
        assert all(row["decode"]["median"] > 0 for row in found["rows"])
        assert [engine["draws"] for engine in found["engines"]] == [DRAWS, DRAWS]
        assert told("bench hf --plan reference --lengths 4 --runs 1")["rows"][0]["draws"] == 55

    @pytest.mark.slow
    def test_bench_of_batches(self, told: Any) -> None:
        found = told("bench q8.gguf --contexts 8 --runs 1 --batch 1,3")
        assert [(row["label"], row["sequences"]) for row in found["batch"]] == [("glinfer file", n) for n in (1, 3)]
        assert all(row["step"]["median"] > 0 for row in found["batch"])

    @pytest.mark.slow
    def test_bench_beside_a_ceiling(self, told: Any) -> None:
        products = told("bench hf --contexts 8 --runs 1 --ceiling")["ceiling"]["products"]
        assert {each["draw"] for each in products} == {"h.0.mlp.fc_in", "h.0.mlp.fc_out"}

    def test_a_batch_by_the_reference_plan_is_refused(self, refused: Any, tmp_path: Path) -> None:
        (tmp_path / "prompts.jsonl").write_text('{"ids": [5, 6, 7]}\n', "utf-8")
        line = f"generate hf --plan reference --batch {tmp_path / 'prompts.jsonl'} --out {tmp_path / 'out.jsonl'}"
        assert "several prompts together need the fast plan" in refused(line)

    @pytest.mark.slow
    @pytest.mark.parametrize("path", ["q8.gguf", pytest.param("gift", marks=pytest.mark.slow)])
    def test_kernels_are_tuned_and_kept(
        self, told: Any, path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GLINFER_CACHE", str(tmp_path))
        (found,) = told(f"tune {path} --seconds 1")
        assert Path(found["file"]).is_relative_to(tmp_path)
        with glinfer.load(path) as model:
            assert dataclasses.asdict(model.kernels) == found["kernels"]

    @pytest.mark.parametrize("path", ["hf", pytest.param("q8.gguf", marks=pytest.mark.slow)])
    def test_weights_chosen_by_measuring(self, told: Any, path: str) -> None:
        found = told(f"generate {path} --ids 5,6,7 --max-tokens 2 --weights auto")
        assert found["weights"] in ("f32", "f16", "q16", "q8l", "q8", "file")


class TestConvert:
    def same(self, first: str | Path, second: str | Path) -> None:
        one, two = load_checkpoint(first), load_checkpoint(second)
        assert one.formats().keys() == two.formats().keys()
        for name in one.formats():
            np.testing.assert_array_equal(one.floats(name), two.floats(name))

    def test_floats_keep_their_bits_there_and_back(self, glin: Any, tmp_path: Path) -> None:
        steps = ["hf", tmp_path / "a.gguf", tmp_path / "b.safetensors", tmp_path / "c.gguf", tmp_path / "d.safetensors"]
        for source, target in itertools.pairwise(steps):
            glin("convert", source, target)
            self.same("hf", target)
        steps = ["g.gab", tmp_path / "g.safetensors", tmp_path / "h.gab"]
        for source, target in itertools.pairwise(steps):
            glin("convert", source, target)
        assert (tmp_path / "h.gab").read_bytes() == Path("g.gab").read_bytes()

    def test_packed_weights(self, glin: Any, tmp_path: Path) -> None:
        glin("convert q8.gguf", tmp_path / "a.gguf")
        assert load_checkpoint(tmp_path / "a.gguf").formats() == load_checkpoint("q8.gguf").formats()
        glin("convert q8.gguf", tmp_path / "b.safetensors")
        assert set(load_checkpoint(tmp_path / "b.safetensors").formats().values()) == {"F32"}
        (tmp_path / "d").mkdir()
        glin("convert gift", tmp_path / "d" / "c.safetensors")
        for source, target in (("q8.gguf", "a.gguf"), ("q8.gguf", "b.safetensors"), ("gift", "d/c.safetensors")):
            self.same(source, tmp_path / target)

    def test_a_gguf_takes_the_tokenizer_along(self, glin: Any, tmp_path: Path) -> None:
        for source, text in (("hf", "the cat"), ("g.gab", "the <|end|>")):
            glin("convert", source, tmp_path / "a.gguf")
            theirs = Tokenizer.from_file("hf" if source == "hf" else "g.bpe")
            assert Tokenizer.from_file(tmp_path / "a.gguf").encode(text) == theirs.encode(text)
            _, said = glin("convert", tmp_path / "a.gguf", tmp_path / "b.gguf")
            assert said == ""
            assert Tokenizer.from_file(tmp_path / "b.gguf").encode(text) == theirs.encode(text)
            _, said = glin("convert", tmp_path / "a.gguf", tmp_path / "c.gguf", "--no-tokenizer")
            assert said == ""
            with glinfer.load(tmp_path / "c.gguf") as model:
                assert model.tokenizer is None

    @pytest.mark.parametrize(
        ("source", "target", "said"),
        [
            ("gift", "a.gguf", "a GGUF file cannot hold this model: its family is 'gift_of_gab'"),
            ("gift", "a.gab", "GAB1 can only hold 'gab'"),
            ("hf", "a.gab", "the model is of the family 'llama'"),
            ("hf", "a.bin", "expected .gab, .safetensors or .gguf"),
        ],
    )
    def test_what_a_format_cannot_hold(self, refused: Any, tmp_path: Path, source: str, target: str, said: str) -> None:
        assert said in refused(f"convert {source}", tmp_path / target)
        assert not list(tmp_path.iterdir())


class TestBadInput:
    @pytest.mark.parametrize("command", ["info", "draws", "generate --ids 1", "verify", "eval --text text.txt"])
    @pytest.mark.parametrize("context", [0, -1, 65])
    def test_a_context_that_the_model_has_not(self, refused: Any, command: str, context: int) -> None:
        name, *more = command.split()
        assert "this model has 1 to 64 positions" in refused(f"{name} hf --context {context}", *more)

    @pytest.mark.parametrize("command", ["draws", "verify"])
    @pytest.mark.parametrize(
        ("shape", "said"),
        [
            ("family=mamba", "family='mamba' in --config; expected one of gab, gpt2"),
            ("family=llama,heads=3,dim=32", "not a multiple of num_attention_heads 3"),
            ("family=llama,kv_heads=3", "not a multiple of num_key_value_heads 3"),
            ("family=llama,inner=x", "inner='x' in --config; expected a whole number"),
            ("family=llama,blocks=1000000", "need more than 100000 draws"),
            ("none.json", "none.json: cannot read it"),
        ],
    )
    def test_shapes_that_are_none(self, refused: Any, command: str, shape: str, said: str) -> None:
        assert said in refused(f"{command} --config {shape}")

    @pytest.mark.parametrize("command", ["info", "draws", "generate --ids 1", "verify", "bench", "chat"])
    def test_damaged_files(self, refused: Any, tmp_path: Path, command: str) -> None:
        name, *more = command.split()
        data = Path("q8.gguf").read_bytes()
        cut, stub, none = (tmp_path / each for each in ("cut.gguf", "stub.gguf", "empty"))
        cut.write_bytes(data[:-100])
        stub.write_bytes(data[:500])
        none.mkdir()
        shards = Path(shutil.copytree("hf", tmp_path / "shards"))
        (shards / "model.safetensors").unlink()
        index = {"weight_map": dict.fromkeys(llama().tensors, "model-00001-of-00001.safetensors")}
        (shards / "model.safetensors.index.json").write_text(json.dumps(index), "utf-8")
        other = Path(shutil.copytree("hf", tmp_path / "other"))
        (other / "config.json").write_text(json.dumps({**CONFIG, "model_type": "mamba"}), "utf-8")
        for path, said in (
            (cut, "it is truncated"),
            (stub, "get it again"),
            (none, "found a directory without config.json"),
            (shards, "first 'model-00001-of-00001.safetensors'"),
            (other, "found model_type 'mamba'; expected one of"),
            (tmp_path / "absent", "cannot read it: No such file"),
        ):
            line = refused(name, path, *more)
            assert said in line
            assert str(path) in line

    def test_a_damaged_tokenizer_is_named_when_text_needs_it(self, refused: Any, glin: Any, tmp_path: Path) -> None:
        gift = Path(shutil.copytree("gift", tmp_path / "gift"))
        (gift / "tokenizer.json").write_text('{"reserved": [], "merges": [[97]]}', "utf-8")
        assert "merge 0 is [97]; expected two ids" in refused("generate", gift, "hen")
        glin("generate", gift, "--ids", "1,2", "--max-tokens", "2")

    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("generate hf --ids 1,300", "this vocabulary has ids 0 to 299"),
            ("generate hf hen --tokenizer gift/tokenizer.json", "they must be the pair that was trained together"),
            ("generate gift/tokenizer.json hen", "gift/tokenizer.json: found another kind of file"),
            ("generate g.bpe hen", "this is a BPE1 tokenizer file"),
            ("bench q8.gguf --contexts 100 --runs 1", "no context is left to time"),
            (f"verify hf --config {SHAPE}", "found both a MODEL and --config"),
        ],
    )
    def test_one_line(self, refused: Any, line: str, said: str) -> None:
        assert said in refused(line)

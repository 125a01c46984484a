"""The command line on models of another family: directories, GGUF files and shapes; good input and bad."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import commands
import pytest
from commands import pipe, ran, ran_json
from scripted_models import SMALL, random_file
from small_models import SHAPE, hugging_face_files, letters
from small_models import small as llama

import glinfer
from glinfer.engine.random_model import demo_tokenizer
from glinfer.formats import write_bpe, write_gguf
from glinfer.gl import faults
from glinfer.inspect.info import software_device
from glinfer.text.tokenizer import Tokenizer

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
ABOUT_1B = "family=llama,blocks=16,heads=32,kv_heads=8,dim=2048,inner=8192,vocab=128256,context=131072"
DRAWS = 6 * 2 + 3
"""Draws a token of every model here."""
TEXT = "the cat sat on the mat and the dog ran to the cat. Once upon a time there was a hen"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model as the directory ``hf``, as ``l.gguf`` and ``q8.gguf``; and a Gab ``g.gab``."""
    pytest.importorskip("gguf")
    made = tmp_path_factory.mktemp("models")
    (made / "hf").mkdir()
    words = json.loads(letters())  # GGUF wants a merge: it takes the place of the last letter
    ids = words["model"]["vocab"]
    ids["he"] = ids.pop(max(ids, key=ids.get))
    words["model"]["merges"] = [["h", "e"]]
    for name, data in {**hugging_face_files(), "tokenizer.json": json.dumps(words).encode()}.items():
        (made / "hf" / name).write_bytes(data)
    write_gguf(llama(), made / "l.gguf", tokenizer=words)
    write_gguf(llama(), made / "q8.gguf", dtype="q8_0", tokenizer=words)
    random_file(made / "g.gab", SMALL)
    write_bpe(demo_tokenizer(300), made / "g.bpe")
    (made / "text.txt").write_text(TEXT, "utf-8")
    return made


@pytest.fixture
def glin(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Callable[..., tuple[str, str]]:
    """Runs a command line in the models' directory; returns its output and errors."""
    monkeypatch.chdir(folder)

    def call(line: str, *more: object, status: int = 0) -> tuple[str, str]:
        return ran(capsys, *line.split(), *more, status=status)

    return call


@pytest.fixture
def told(glin: Any, capsys: Capture) -> Callable[..., Any]:
    """The same with ``--json``: the document alone, and nothing on standard error."""
    return lambda line, *more: ran_json(capsys, *line.split(), *more)


@pytest.fixture
def refused(glin: Any, capsys: Capture) -> Callable[..., str]:
    """The one line that a command says when it ends with exit status 2."""
    return lambda line, *more: commands.refused(capsys, *line.split(), *more)


class TestInfo:
    def test_of_every_kind_of_file(self, told: Any) -> None:
        for path, formats in (
            ("hf", {"F32": 21}),
            ("hf/config.json", {"F32": 21}),
            ("q8.gguf", {"F32": 5, "Q8_0": 16}),
        ):
            model = told(f"info {path}")["model"]
            assert (model["formats"], model["draws"], model["fits"]) == (formats, DRAWS, True), path
            assert model["config"]["model_type"] == "llama"
        whole, part = (told(f"info {what}")["model"]["texture_bytes"] for what in ("hf", "q8.gguf --context 16"))
        assert part["cache"] < whole["cache"]
        assert part["weight"] < whole["weight"]


class TestDraws:
    def test_the_file_and_its_shape_have_the_same(self, told: Any) -> None:
        found = [told(f"draws {what}") for what in ("hf", "--config hf/config.json", f"--config {SHAPE}")]
        assert found[0] == found[1] == found[2]
        assert found[0]["draws"] == DRAWS

    def test_a_shape_of_a_billion_parameters_needs_no_weights(self, told: Any, refused: Any) -> None:
        found = told(f"draws --config {ABOUT_1B}")
        assert found["draws"] == 6 * 16 + 3
        assert found["config"]["max_position_embeddings"] == 4096, "what is usual for rotary positions"
        for command in ("draws", "verify"):
            assert "largest texture here is 2048×2048" in refused(f"{command} --config {ABOUT_1B} --limits webgl2")


class TestGenerate:
    @pytest.mark.slow
    def test_a_batch_of_another_context_is_not_gone_on_with(self, glin: Any, tmp_path: Path) -> None:
        prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.jsonl"
        prompts.write_text('{"ids": [5, 6, 7]}\n', "utf-8")
        glin("generate hf/config.json --max-tokens 2 --batch", prompts, "--out", out)
        glin("generate hf/config.json --max-tokens 2 --batch", prompts, "--out", out)
        _, said = glin("generate hf/config.json --context 8 --max-tokens 2 --batch", prompts, "--out", out, status=2)
        assert "its results were made with --context default (now 8); give another --out" in said


class TestChat:
    def typed(self, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
        pipe(monkeypatch, text)

    def test_in_the_form_of_the_template(
        self, glin: Any, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.typed(monkeypatch, "the cat\n/think\n/quit\n")
        _, err = glin("chat hf --max-tokens 3 --system hen", status=2)
        assert err == "glinfer: this model's chat template decides whether it thinks; chat without asking for it\n"
        expected = "<|im_start|>system\nhen<|im_end|>\n<|im_start|>user\nthe cat<|im_end|>\n<|im_start|>assistant\n"
        assert prompts == [Tokenizer.from_file("hf").encode(expected)]

    def test_what_it_cannot_do_is_one_line(self, refused: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        broken = shutil.copytree("hf", tmp_path / "broken")
        told = {"eos_token": "<|im_end|>", "chat_template": "{{ nobody.name }}"}
        (broken / "tokenizer_config.json").write_text(json.dumps(told), "utf-8")
        self.typed(monkeypatch, "hi\n")
        for what, said in (
            ("hf --think", "chat template decides whether it thinks"),
            ("l.gguf", "this model cannot chat: it has no chat template"),
            (f"{broken}", "the model's chat template cannot be used: 'nobody' is undefined"),
        ):
            assert said in refused(f"chat {what}")


class TestMeasuring:
    def test_eval_of_the_reference_plan_is_refused(self, refused: Any) -> None:
        assert "the reference plan scores no texts of this llama" in refused("eval hf --text text.txt --plan reference")

    def test_a_batch_by_the_reference_plan_is_refused(self, refused: Any, bare: Path, tmp_path: Path) -> None:
        (tmp_path / "prompts.jsonl").write_text('{"ids": [5, 6, 7]}\n', "utf-8")
        line = f"--plan reference --batch {tmp_path / 'prompts.jsonl'} --out {tmp_path / 'out.jsonl'}"
        assert "several prompts together need the fast plan" in refused("generate", bare, *line.split())

    @pytest.mark.slow
    def test_kernels_are_tuned_and_kept(self, told: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("GLINFER_CACHE", str(tmp_path))
        monkeypatch.setattr(faults, "in_main_memory", lambda renderer: False)  # a GPU is timed beside the CPU
        (found,) = told("tune q8.gguf --seconds 1")
        assert Path(found["file"]).is_relative_to(tmp_path)
        with glinfer.load("q8.gguf") as model:
            assert dataclasses.asdict(model.kernels) == found["kernels"]
        assert found["software"]["milliseconds"] > 0

    def test_a_cache_that_takes_no_files_is_refused_before_the_search(
        self, refused: Any, bare: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("GLINFER_CACHE", "/dev/null")
        monkeypatch.setattr("glinfer.cli.tune.tune", None)
        assert "/dev/null/kernels: cannot write to this folder" in refused("tune", bare)

    def test_a_slow_gpu_is_advised_to_try_the_software_renderer(
        self, glin: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "slower" not in glin("info")[0]
        advice = (
            f"this GPU may be slower than the CPU; try --device {software_device()}, or time both with 'glinfer tune'"
        )
        assert advice in glin("info", "--pretend", "slow")[0]
        monkeypatch.setattr("glinfer.inspect.info.SLOW", 0.0)
        assert "slower" not in glin("info", "--pretend", "slow")[0]


class TestConvert:
    def test_what_a_format_cannot_hold(self, refused: Any, tmp_path: Path) -> None:
        assert "the model is of the family 'llama'" in refused("convert hf", tmp_path / "a.gab")
        assert not list(tmp_path.iterdir())


class TestBadInput:
    def test_a_context_that_the_model_has_not(self, refused: Any) -> None:
        for command in ("info", "draws", "generate --ids 1", "verify", "eval --text text.txt"):
            name, *more = command.split()
            for context in (0, 97):
                assert "expected 1 to 96, the positions of this model" in refused(
                    f"{name} hf --context {context}", *more
                )

    def test_a_damaged_tokenizer_is_named_when_text_needs_it(self, refused: Any, glin: Any, tmp_path: Path) -> None:
        other = Path(shutil.copytree("hf", tmp_path / "other"))
        (other / "tokenizer.json").write_text('{"reserved": [], "merges": [[97]]}', "utf-8")
        assert "merge 0 is [97]; expected two ids" in refused("generate", other, "hen")
        glin("generate", other, "--ids", "1,2", "--max-tokens", "2")

    def test_one_line(self, refused: Any) -> None:
        for line, said in (
            ("generate hf --ids 1,258", "this vocabulary has ids 0 to 257"),
            ("generate hf hen --tokenizer g.bpe", "they must be the pair that was trained together"),
            ("generate hf/tokenizer.json hen", "hf/tokenizer.json: found another kind of file"),
            ("generate g.bpe hen", "this is a BPE1 tokenizer file"),
            ("bench q8.gguf --contexts 100 --runs 1", "found no context within this model's"),
            (f"verify hf --config {SHAPE}", "found both a MODEL and --config"),
        ):
            assert said in refused(line)

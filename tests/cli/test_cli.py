"""The command line in-process: what each command prints, as text and as JSON, and its exit status."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import pytest
from commands import pipe, ran, ran_json, refused
from scripted_models import FAST_SMALL_DRAWS, SMALL, SMALL_DRAWS, random_file
from tiers import tiered

import glinfer
from glinfer.cli.app import run
from glinfer.engine.random_model import demo_tokenizer, write_demo
from glinfer.errors import InputError
from glinfer.formats import load_checkpoint, save_checkpoint, write_bpe
from glinfer.inspect.draws import DrawReport
from glinfer.text.tokenizer import learn_bpe

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
CLOSING = re.compile(
    rf"^{FAST_SMALL_DRAWS + 2} draws/token · (\d+) tokens · [\d.]+ tok/s · OpenGL ES 3\.\d .* · .+$", re.MULTILINE
)


class TestGenerate:
    def test_text_and_closing_line(self, small: Path, capsys: Capture) -> None:
        with glinfer.load(small) as model:
            expected = model.generate("Once upon", max_tokens=8, seed=1, temperature=0.5)
        arguments = ["generate", small, "Once upon", "--max-tokens", "8", "--seed", "1", "--temperature", "0.5"]
        out, err = ran(capsys, *arguments)
        assert out == expected + "\n"
        assert CLOSING.fullmatch(err.rstrip("\n"))
        assert ran(capsys, *arguments, "--quiet") == (out, "")

    @pytest.mark.parametrize("as_ids", [False, True])
    def test_json_has_everything(self, small: Path, capsys: Capture, as_ids: bool) -> None:
        prompt: Any = [13, 132] if as_ids else "Once upon"
        with glinfer.load(small) as model:
            expected = model.generate(prompt, max_tokens=6, seed=3)
            renderer = model.device.description
        given = ["--ids", "13,132"] if as_ids else ["Once upon"]
        report = ran_json(capsys, "generate", small, *given, "--max-tokens", "6", "--seed", "3")
        assert report.pop("seconds") > 0
        assert report.pop("prompt_seconds") >= 0
        assert report.pop("tokens_per_second") > 0
        ids = report.pop("ids")
        assert len(ids) == report["tokens"] - (report["finish_reason"] == "stop")
        assert (ids if as_ids else report["text"]) == expected
        assert report.pop("text") is None if as_ids else isinstance(report.pop("text"), str)
        assert report.pop("prompt_tokens") == (2 if as_ids else len(prompt_ids(small, prompt)))
        assert report.pop("finish_reason") in ("length", "stop")
        assert 1 <= report.pop("tokens") <= 6
        assert report == {
            "prompt": prompt,
            "dropped": 0,
            "drafted": 0,
            "accepted": 0,
            "forced": 0,
            "complete": None,
            "draws_per_token": FAST_SMALL_DRAWS + 2,  # three that choose among filtered tokens, for one
            "plan": "fast",
            "weights": "f32",
            "cache": "f32",
            "renderer": renderer,
        }

    def test_the_prompt_may_come_from_standard_input(
        self, small: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        arguments = ["--max-tokens", "3", "--seed", "1", "-q"]
        for prompt, piped in (("é x", "é x"), ("é x\n", "é x\n\n")):
            expected = ran(capsys, "generate", small, prompt, *arguments)
            pipe(monkeypatch, piped)
            assert ran(capsys, "generate", small, "-", *arguments) == expected

    def test_a_full_context_is_told(self, bare: Path, capsys: Capture) -> None:
        arguments = ["generate", bare, "--ids", ",".join(["7"] * 62), "--temperature", "0"]
        _, err = ran(capsys, *arguments, "--max-tokens", "3")
        assert "full" not in err
        out, err = ran(capsys, *arguments, "--max-tokens", "40")
        assert out.count(",") == 39
        assert err.startswith("context of 64 tokens full: dropped the oldest 64 · ")
        report = ran_json(capsys, *arguments, "--max-tokens", "40")
        assert (report["finish_reason"], report["dropped"], report["tokens"]) == ("length", 64, 40)

    def test_a_stop_string_is_an_end(self, small: Path, capsys: Capture) -> None:
        arguments = ["generate", small, "Once", "--seed", "5", "--max-tokens", "12", "-q"]
        whole = ran(capsys, *arguments)[0].rstrip("\n")
        stop = whole[3:5]
        assert ran(capsys, *arguments, "--stop", stop, "--stop", "never") == (whole[: whole.index(stop)] + "\n", "")

    def test_enormous_numbers_are_no_harm(self, bare: Path, capsys: Capture) -> None:
        huge = str(10**30)
        arguments = ["generate", bare, "--ids", "1", "--seed", huge, "--top-k", huge, "-q"]
        out, _ = ran(capsys, *arguments, "--max-tokens", "5")
        assert out.count(",") == 4
        words = bare.parent / "words.bpe"
        write_bpe(demo_tokenizer(300), words)
        stops = [part for token in range(256) for part in ("--stop", chr(token))][2:]
        arguments[2:4] = ["Once", "--tokenizer", str(words)]
        ran(capsys, *arguments, *stops, "--max-tokens", huge)

    @tiered("extra", ["--device 0", "--device auto --api es", "--limits webgl2"], keep=2)
    def test_ways_to_open_the_renderer(self, bare: Path, capsys: Capture, extra: str) -> None:
        arguments = ["generate", bare, "--ids", "1,2,3", "--temperature", "0", "--max-tokens", "4", "-q"]
        assert ran(capsys, *arguments, *extra.split()) == ran(capsys, *arguments)


def prompt_ids(small: Path, text: str) -> list[int]:
    with glinfer.load(small) as model:
        return model.require_tokenizer().encode(text)


class TestDraws:
    @pytest.mark.parametrize(
        ("plan", "total", "scores"), [("fast", 39, "cached_scores +6 "), ("reference", 244, "attention_scores +48 ")]
    )
    def test_gabs_draws_by_pass(self, capsys: Capture, plan: str, total: int, scores: str) -> None:
        out, err = ran(capsys, "draws", "--config", "blocks=6,heads=8", "--plan", plan)
        assert f"plan {plan} · {total} draws/token" in out
        assert re.search(rf"^attn\.scores +{scores}", out, re.MULTILINE)
        assert re.search(rf"^total +{total} +100\.0% *$", out, re.MULTILINE)
        assert err == ""

    def test_any_shape_follows_the_formula(self, capsys: Capture) -> None:
        for config, total in (("", 244), ("blocks=13,heads=16", 940), ("blocks=1,heads=1", 16)):
            report = ran_json(capsys, "draws", "--config", config, "--tokens", "7", "--plan", "reference")
            shape = report["config"]
            assert report["draws"] == total == shape["num_hidden_layers"] * (8 + 4 * shape["num_attention_heads"]) + 4
            assert sum(row["count"] for row in report["passes"]) == total
            assert abs(sum(row["share"] for row in report["passes"]) - 1) < 1e-9
            assert (report["tokens"], report["issued"], report["agrees"], report["renderer"]) == (7, None, True, None)
            assert set(report) == {
                *("plan", "tokens", "draws", "issued", "agrees", "renderer", "estimate", "passes", "config"),
                *("texture_bytes", "largest_texture", "plans"),
            }
            assert set(report["passes"][0]) == {"kind", "shader", "count", "rows", "cols", "share"}

    def test_both_plans_are_counted_whichever_is_asked_for(self, capsys: Capture) -> None:
        llama = "family=llama,blocks=2,heads=2,dim=8,inner=8,vocab=300"
        for config, fast, reference, line in (
            ("gab", 39, 244, "fast plan 39 draws/token (fused passes, cached keys and values) · reference plan 244 ("),
            ("gab,blocks=1", 9, 44, "reference plan 44 (published passes, the whole sequence for each token)"),
            (llama, 15, 55, "reference plan about 55 (unfused passes, the whole sequence for each token)"),
        ):
            for plan in ("fast", "reference"):
                command = ("draws", "--config", config, "--plan", plan)
                found = ran_json(capsys, *command)
                assert found["plans"] == {"fast": fast, "reference": reference}
                assert found["draws"] == found["plans"][plan]
                assert line in ran(capsys, *command)[0]
        out, _ = ran(capsys, "draws", "--config", "gab,blocks=1", "--weights", "q8", "--cache", "q8")
        assert "fast plan 10 draws/token" in out
        assert "reference plan 44 (published passes" in out

    def test_a_plan_that_a_model_lacks_is_not_counted(self, capsys: Capture) -> None:
        command = ("draws", "--config", "family=bert,blocks=1,heads=2,dim=8,vocab=300")
        assert "only the fast plan runs this model" in ran(capsys, *command)[0]
        assert ran_json(capsys, *command)["plans"]["reference"] is None

    def test_a_real_forward_issues_as_many(self, small: Path, capsys: Capture) -> None:
        for tokens in ("1", "9", "64"):
            for plan, draws in (("fast", FAST_SMALL_DRAWS), ("reference", SMALL_DRAWS)):
                report = ran_json(capsys, "draws", small, "--measure", "--tokens", tokens, "--plan", plan)
                assert (report["issued"], report["draws"], report["agrees"]) == (draws, draws, True), (tokens, plan)
                assert "OpenGL ES 3" in report["renderer"]

    @pytest.mark.slow
    def test_kinds_name_all_their_shaders_and_an_estimate_is_said_to_be_one(
        self, tmp_path: Path, capsys: Capture
    ) -> None:
        shape = "family=llama,blocks=2,heads=2,dim=8,inner=8,vocab=300,context=4096"
        model = random_file(tmp_path / "model.safetensors", shape)
        reference = ("draws", model, "--plan", "reference")
        out, _ = ran(capsys, *reference)
        assert re.search(r"^lm_head +strided_copy, row_stats, normalize, matmul +4 +300×1 ", out, re.MULTILINE)
        assert "an estimate for a renderer with the simplest kernels" in out
        assert "an estimate" not in ran(capsys, "draws", model)[0]
        counted, measured = ran_json(capsys, *reference), ran_json(capsys, *reference, "--measure")
        assert (counted["estimate"], measured["estimate"]) == (True, False)
        assert measured["draws"] == measured["issued"]

    def test_a_shape_alone_can_be_measured(self, capsys: Capture) -> None:
        out, _ = ran(capsys, "draws", "--config", SMALL, "--measure")
        assert f"issued {FAST_SMALL_DRAWS} draw calls in a real run: agrees with the plan" in out

    def test_a_difference_is_exit_status_1(self, small: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
        from glinfer.cli import draws as module

        measured = module.measured

        def one_less(*given: Any, **named: Any) -> DrawReport:
            report = measured(*given, **named)
            return dataclasses.replace(report, issued=report.table.total - 1)

        monkeypatch.setattr(module, "measured", one_less)
        out, _ = ran(capsys, "draws", small, "--measure", status=1)
        assert "DIFFERS from the plan" in out
        out, _ = ran(capsys, "draws", small, "--measure", "--json", status=1)
        assert json.loads(out)["agrees"] is False


class TestInfo:
    def test_the_renderer_and_its_limits(self, capsys: Capture) -> None:
        out, err = ran(capsys, "info")
        assert out.endswith("glinfer can run here\n")
        assert re.search(r"^max texture size +\d+ +2048 *$", out, re.MULTILINE)
        assert err == ""

    def test_json(self, small: Path, capsys: Capture) -> None:
        report = ran_json(capsys, "info")
        assert (report["can_run"], report["api"], report["model"]) == (True, "es", None)
        assert set(report) == {
            *("api", "renderer", "vendor", "version", "extensions", "limits", "webgl2_minimum", "can_run", "model"),
            "self_test",
        }
        assert report["extensions"]["GL_EXT_color_buffer_float"] is True
        model = ran_json(capsys, "info", small)["model"]
        assert set(model) == {
            *("config", "formats", "parameters", "plan", "weights", "cache"),
            *("draws", "draws_are_an_estimate", "texture_bytes", "fits", "problem"),
            *("context", "tokenizer", "chat", "end_tokens", "sampling", "origin"),
        }
        assert (model["draws"], model["fits"], model["parameters"]) == (FAST_SMALL_DRAWS, True, 46764)
        assert set(model["texture_bytes"]) == {"weight", "input", "activation", "cache"}
        assert model["texture_bytes"]["weight"] > 4 * 46764
        assert model["texture_bytes"]["cache"] > 0
        published = ran_json(capsys, "info", small, "--plan", "reference")["model"]
        assert (published["draws"], published["texture_bytes"]["weight"]) == (SMALL_DRAWS, 4 * 46764)

    def test_pretended_devices(self, capsys: Capture) -> None:
        report = ran_json(capsys, "info", "--pretend", "webgl2")
        assert report["limits"] == report["webgl2_minimum"]
        assert (report["can_run"], report["self_test"]) == (True, {})
        assert run(["info", "--pretend", "short"]) == 2
        out, err = capsys.readouterr()
        assert re.search(
            r"^test of uniforms of 32 bits +failed: found 0, 0, 121, 185; expected 158, 55,", out, re.MULTILINE
        )
        assert "can run here" not in out
        assert err.startswith("glinfer: llvmpipe")
        assert err.endswith("choose another device (glinfer info --device list)\n")
        assert "--pretend expects a number" in refused(capsys, "info", "--pretend", "short", "--device", "auto")

    def test_a_context_that_is_cut_and_what_stands_around_a_model(self, tmp_path: Path, capsys: Capture) -> None:
        shape = "family=llama,blocks=1,heads=2,dim=8,inner=8,vocab=300"
        model = random_file(tmp_path / "long.safetensors", f"{shape},context=9000")
        out, _ = ran(capsys, "info", model)
        assert re.search(r"^max_position_embeddings +9000 *$", out, re.MULTILINE)
        assert re.search(r"^context +4096 of the model's 9000 positions; --context changes this", out, re.MULTILINE)
        assert re.search(r"^tokenizer +no: no tokenizer was given", out, re.MULTILINE)
        assert re.search(r"^sampling +none in its files", out, re.MULTILINE)
        (tmp_path / "generation_config.json").write_text('{"temperature": 0.6, "top_k": 20, "eos_token_id": [7, 8]}')
        report = ran_json(capsys, "info", model, "--context", "100")["model"]
        assert (report["config"]["max_position_embeddings"], report["context"]) == (9000, 100)
        assert report["sampling"] == {"temperature": 0.6, "top_k": 20}
        assert report["end_tokens"] == [{"id": 7, "text": ""}, {"id": 8, "text": ""}]
        assert report["tokenizer"] is report["chat"]["form"] is None
        (tmp_path / "generation_config.json").write_text("{")
        report = ran_json(capsys, "info", model)["model"]
        assert (report["sampling"], report["end_tokens"]) == ({}, [])
        assert "generation_config.json" in report["sampling_problem"]

    def test_a_tokenizer_and_a_chat_form(self, capsys: Capture) -> None:
        out, _ = ran(capsys, "info", "shakespeare")
        assert re.search(r"^context +256 tokens, all positions of the model *$", out, re.MULTILINE)
        assert re.search(r"^tokenizer +byte-level BPE without words, 512 tokens *$", out, re.MULTILINE)
        assert re.search(r"^chat template +no: this model cannot chat: it has no chat template", out, re.MULTILINE)

    def test_a_model_that_does_not_fit_is_told_not_refused(self, tmp_path: Path, capsys: Capture) -> None:
        wide = random_file(tmp_path / "wide.gab", "vocab=9,dim=4,heads=1,blocks=1,context=2100")
        report = ran_json(capsys, "info", wide, "--limits", "webgl2", "--plan", "reference")["model"]
        assert report["fits"] is False
        assert "2100×2100" in report["problem"]
        assert ran_json(capsys, "info", wide, "--plan", "reference")["model"]["fits"] is True
        assert ran_json(capsys, "info", wide, "--limits", "webgl2")["model"]["fits"] is True


class TestConvert:
    def test_there_and_back_is_the_same_file(self, small: Path, tmp_path: Path, capsys: Capture) -> None:
        between, back = tmp_path / "m.safetensors", tmp_path / "m.gab"
        out, err = ran(capsys, "convert", small, between)
        assert out == f"wrote {between}: 30 tensors, 46,764 parameters, 0.2 MB\nwrote {tmp_path / 'm.bpe'}\n"
        assert err == ""
        report = ran_json(capsys, "convert", between, back)
        assert report == {
            "source": str(between),
            "target": str(back),
            "bytes": small.stat().st_size,
            "tensors": 30,
            "parameters": 46764,
            "tokenizer": True,
            "chat_template": False,
            "sampling": {},
            "beside": [str(tmp_path / "m.bpe")],
        }
        assert back.read_bytes() == small.read_bytes()
        assert (tmp_path / "m.bpe").read_bytes() == small.with_suffix(".bpe").read_bytes()
        assert sorted(path.name for path in tmp_path.iterdir()) == ["m.bpe", "m.gab", "m.safetensors"]

    def test_what_a_gab_cannot_record_is_noted(self, small: Path, tmp_path: Path, capsys: Capture) -> None:
        erf = dataclasses.replace(load_checkpoint(small), config=load_checkpoint(small).config.with_gelu("erf"))
        save_checkpoint(erf, tmp_path / "erf.safetensors")
        for target in (".", "/", tmp_path, tmp_path / "m.bin"):
            assert "expected .gab, .safetensors or .gguf" in refused(capsys, "convert", small, target)
        both = "convert", small, tmp_path / "m.gab", "--no-tokenizer", "--tokenizer", small.with_suffix(".bpe")
        assert "found both --tokenizer and --no-tokenizer" in refused(capsys, *both)
        _, err = ran(capsys, "convert", tmp_path / "erf.safetensors", tmp_path / "erf.GAB", "--no-tokenizer")
        assert err == "note: .gab cannot record that this model has the erf form of GELU; run it with --gelu erf\n"


class TestDemo:
    def test_a_model_of_ones_own(self, bare: Path, tmp_path: Path, capsys: Capture) -> None:
        own = Path(shutil.copy(bare, tmp_path / "own.gab"))
        write_bpe(learn_bpe(topics.values(), 300), own.with_suffix(".bpe"))  # without tokens for a chat
        with glinfer.load(own) as model:
            expected = "Hello" + model.generate("Hello", max_tokens=5, seed=1, temperature=0.8)
        out, err = ran(capsys, "demo", "--model", own, "--prompt", "Hello", "--max-tokens", "5")
        assert out.startswith(expected + "\n")
        assert CLOSING.fullmatch(out[len(expected) :].strip())
        assert err == ""

    @pytest.mark.parametrize("terminal", [False, True])
    def test_a_model_that_chats_replies(
        self, small: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, terminal: bool
    ) -> None:
        """To the prompt, or to a question; and without a prompt to all that is typed, in the same talk."""
        with glinfer.load(small) as model:
            talk = model.chat_session()
            question = "> What is the capital of France?\n"
            first = str(talk.send("What is the capital of France?", max_tokens=5, seed=1))
            alone = str(model.chat("hello", max_tokens=5, seed=1))
        monkeypatch.setattr("sys.stdin.isatty", lambda: terminal, raising=False)
        monkeypatch.setattr("sys.stdout.isatty", lambda: terminal)
        typed = iter(["/system", "/save talk.json", "/quit"])
        monkeypatch.setattr("builtins.input", lambda prompt: next(typed))
        monkeypatch.chdir(small.parent)
        said = "".join(ran(capsys, "demo", "--model", small, "--prompt", "hello", "--max-tokens", "5"))
        assert f"> hello\n{alone}\n" in said
        assert "/help" not in said
        said = "".join(ran(capsys, "demo", "--model", small, "--max-tokens", "5"))
        assert question + first + "\n" in said
        assert ("/help for commands" in said) == terminal
        assert ("saved 2 messages to talk.json" in said) == terminal
        assert list(typed) == ([] if terminal else ["/system", "/save talk.json", "/quit"])

    def test_without_a_model_it_is_shakespeare(self, capsys: Capture) -> None:
        with glinfer.load("shakespeare") as model:
            expected = "ROMEO:" + model.generate("ROMEO:", max_tokens=3, seed=1, temperature=0.8)
        out, err = ran(capsys, "demo", "--max-tokens", "3")
        assert out.startswith(expected)
        assert "\n41 draws/token · 3 tokens · " in out
        assert err == ""

    @pytest.mark.slow
    def test_random_weights_say_that_the_text_is_noise(
        self, cache_home: Path, full_file: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
        made = full_file.stat().st_mtime_ns
        out, err = ran(capsys, "demo", "--random", "--max-tokens", "2")
        assert out.startswith("ROMEO:")
        assert "\n41 draws/token · 2 tokens · " in out
        assert "NOISE" in err
        assert str(cache_home) in err
        assert full_file.stat().st_mtime_ns == made, "a model that is there is not written again"
        assert glinfer.generate(full_file, "Once upon", max_tokens=1, temperature=0), "its tokenizer fits"

    def test_the_files_are_written_once_and_belong_together(self, tmp_path: Path) -> None:
        shape = glinfer.ModelConfig.from_options(SMALL)
        paths = write_demo(tmp_path / "new" / "folder", shape)
        made = [path.stat().st_mtime_ns for path in paths]
        assert write_demo(tmp_path / "new" / "folder", shape) == paths
        assert [path.stat().st_mtime_ns for path in paths] == made
        assert glinfer.generate(paths[0], "Once", max_tokens=1, temperature=0), "its tokenizer fits"

    def test_the_tokenizer_has_the_size_asked_for(self) -> None:
        for size in (256, 278, 286):
            model = demo_tokenizer(size)
            assert len(model.vocabulary) == size
            assert (b"<|assistant|>" in model.vocabulary) == (size >= 286)
        for size in (255, 10**6):
            with pytest.raises(InputError, match=f"cannot make a demo tokenizer with {size} entries"):
                demo_tokenizer(size)

"""``glinfer generate --batch``: a file of prompts in, a file of results out, refusals, and going on after a stop."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from commands import ran
from json_lines import results_in, write_lines
from tiers import tiered

import glinfer
from glinfer.engine.model import Model
from glinfer.errors import InputError
from glinfer.jobs.results import ResultFile

pytestmark = pytest.mark.gl

Capture = pytest.CaptureFixture[str]
PROMPTS: list[dict[str, Any]] = [
    {"prompt": "Once upon", "id": "first"},
    {"ids": [13, 132, 251], "max_tokens": 3},
    {"prompt": "é x\n", "temperature": 0, "max_tokens": 9},
    {"prompt": "Once", "seed": 5, "top_k": 20},
    {"ids": [7] * 20, "max_tokens": 44, "temperature": 0.5, "top_p": 0.9, "repetition_penalty": 1.2},
    {"prompt": "The", "id": "last", "min_p": 0.01},
]
OPTIONS = ["--max-tokens", "6", "--seed", "3", "--slots", "2"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "prompts.jsonl", *PROMPTS)


def batch(capsys: Capture, *arguments: object, status: int = 0) -> tuple[str, str]:
    """Run ``glinfer generate`` with these; returns what it wrote to standard output and error."""
    return ran(capsys, "generate", *arguments, status=status)


def results(out: Path) -> dict[object, dict[str, Any]]:
    found = results_in(out, key="id")
    return {key: {name: line[name] for name in line if name != "id"} for key, line in found.items()}


def alone(model: Model, number: int, line: dict[str, Any]) -> dict[str, Any]:
    """What the line gives when the model runs it by itself."""
    options = {"max_tokens": 6, "seed": 3 + number - 1, **line}
    options.pop("id", None)
    prompt = options.pop("prompt", None) or options.pop("ids")
    stream = model.stream(prompt, **options)
    text = "".join(map(str, stream))
    names = "finish_reason", "prompt_tokens", "tokens"
    counts = {name: getattr(stream.stats, name) for name in names}
    return {"text": text if isinstance(prompt, str) else None, "ids": stream.ids, **counts}


class TestResults:
    def test_every_line_gives_what_it_gives_alone(self, small: Path, prompts: Path, capsys: Capture) -> None:
        out = prompts.with_name("out.jsonl")
        _, err = batch(capsys, small, "--batch", prompts, "--out", out, *OPTIONS)
        found = results(out)
        assert all(len(result.pop("prompt_sha")) == 16 for result in found.values())
        with glinfer.load(small) as model:
            expected = {line.get("id", n): alone(model, n, line) for n, line in enumerate(PROMPTS, start=1)}
        assert found == expected
        assert err.startswith(f"6 lines done · {sum(result['tokens'] for result in found.values())} tokens · ")
        assert " tok/s · " in err
        assert " draws · OpenGL ES 3." in err
        assert err.count("\n") == 1
        nothing = f"nothing to do: {out} has all results; --restart starts over\n"
        command = [small, "--batch", prompts, "--out", out, *OPTIONS]
        assert batch(capsys, *command) == ("", nothing)
        report = json.loads(batch(capsys, *command, "--json")[0])
        assert (report["finished_before"], report["lines"], report["tokens"], report["renderer"]) == (6, 0, 0, None)

    def test_json_and_starting_over(self, small: Path, tmp_path: Path, capsys: Capture) -> None:
        prompts, out = write_lines(tmp_path / "p.jsonl", PROMPTS[1]), tmp_path / "out.jsonl"
        out.write_text("precious\n", encoding="utf-8")
        said, err = batch(capsys, small, "--batch", prompts, "--out", out, *OPTIONS, "--json", "--restart")
        report, (found,) = json.loads(said), results(out).values()
        assert err == ""
        assert report.pop("seconds") > 0
        assert report.pop("tokens_per_second") > 0
        assert report.pop("draws") > 0
        assert report.pop("renderer").startswith("OpenGL ES 3.")
        counts = {"finished_before": 0, "lines": 1, "prompt_tokens": 3, "tokens": found["tokens"], "dropped": 0}
        how = {"plan": "fast", "weights": "f32", "cache": "f32"}
        assert report == {"batch": str(prompts), "out": str(out), **counts, **how}

    def test_the_options_reach_the_model(
        self, small: Path, prompts: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen: list[dict[str, Any]] = []

        def spy(self: Model, requests: Any, **options: Any) -> Any:
            seen.append(options)
            raise InputError("enough is known")

        monkeypatch.setattr(Model, "batch", spy)
        out = prompts.with_name("out.jsonl")
        command = [small, "--batch", prompts, "--out", out, "--max-tokens", 6]
        batch(capsys, *command, "--slots", "2", "--memory", "64", status=2)
        batch(capsys, *command, status=2)
        longest = 20 + 44
        assert seen == [
            {"slots": 2, "memory": 64_000_000, "longest": longest},
            {"slots": 6, "memory": None, "longest": longest},
        ]


class TestGoingOn:
    @tiered(("after", "written"), [(3, True), (0, False), (5, False)])
    def test_an_interrupted_run_goes_on_to_the_same_results(
        self, small: Path, prompts: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch, after: int, written: bool
    ) -> None:
        out, whole = prompts.with_name("out.jsonl"), prompts.with_name("whole.jsonl")
        batch(capsys, small, "--batch", prompts, "--out", whole, *OPTIONS, "-q")
        real = ResultFile.write
        count = 0

        def write_some(self: ResultFile, *given: Any) -> None:
            nonlocal count
            if count == after and not written:
                raise KeyboardInterrupt
            count += 1
            real(self, *given)
            if count == after and written:  # a result that is in the file, but in no count yet
                raise KeyboardInterrupt

        arguments = [small, "--batch", prompts, "--out", out, *OPTIONS]
        with monkeypatch.context() as patch:
            patch.setattr(ResultFile, "write", write_some)
            _, err = batch(capsys, *arguments, status=130)
        assert err.rstrip() == f"interrupted: {out} has {after} of 6 results; the same command resumes"
        assert len(results(out)) == after
        with out.open("ab") as file:
            file.write(b'{"id": "las')
        _, err = batch(capsys, *arguments)
        before = f", {after} earlier" if after else ""
        assert err.startswith(f"{6 - after} line{'s' if after < 5 else ''} done{before} · ")
        assert results(out) == results(whole)

    OTHERS = (
        (["--temperature", "0.5"], "its options or the model have changed since this was made"),
        (["--weights", "q8"], "its results were made with --weights auto (now q8); "),
        (["--gelu", "erf"], "its results were made with --gelu default (now erf); "),
        (["MODEL"], "its results were made with another model; "),
    )

    def test_other_results_do_not_go_into_the_same_file(
        self, small: Path, bare: Path, prompts: Path, capsys: Capture
    ) -> None:
        write_lines(prompts, *(line for line in PROMPTS if "ids" in line))
        out, other = prompts.with_name("out.jsonl"), prompts.with_name("other.gab")
        other.write_bytes(bare.read_bytes()[:-4] + b"\0\0\0\0")
        batch(capsys, small, "--batch", prompts, "--out", out, *OPTIONS)
        before = out.read_bytes()
        for change, words in self.OTHERS:
            model, more = (other, ()) if change == ["MODEL"] else (small, change)
            _, err = batch(capsys, model, "--batch", prompts, "--out", out, *OPTIONS, *more, status=2)
            assert words in err
            assert err.count("\n") == 1
            assert out.read_bytes() == before, change


class TestRefused:
    """All but what only the model can tell is refused before a model is loaded."""

    @pytest.fixture(autouse=True)
    def no_model(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        if "with_model" not in request.node.name:
            monkeypatch.setattr("glinfer.cli.common.load_model", lambda *_, **__: pytest.fail("a model was loaded"))

    def refused(self, capsys: Capture, *arguments: object) -> str:
        out, err = batch(capsys, *arguments, status=2)
        assert out == ""
        assert err.startswith("glinfer: ")
        assert err.count("\n") == 1
        return err

    REFUSED = (
        (["text", "--batch", "FILE", "--out", "OUT"], "--batch reads its prompts from a file; leave out PROMPT"),
        (["--ids", "1", "--batch", "FILE", "--out", "OUT"], "--batch reads its prompts from a file"),
        (["--batch", "FILE"], "--batch needs --out FILE"),
        (["--batch", "-", "--out", "OUT"], "--batch needs a file, not standard input"),
        (["--batch", "FILE", "--out", "-"], "--out needs a file, not standard input or output"),
        (["text", "--out", "OUT"], "--out needs --batch FILE"),
        (["text", "--slots", "2"], "--slots needs --batch FILE"),
        (["--ids", "1", "--memory", "2"], "--memory needs --batch FILE"),
        (["--batch", "FILE", "--out", "OUT", "--slots", "0"], "Invalid value for '--slots': 0"),
        (["--batch", "FILE", "--out", "OUT", "--temperature", "-1"], "glinfer: --temperature is -1.0"),
        (["--batch", "FILE", "--out", "OUT", "--stop", ""], "glinfer: stop string 0 is empty"),
        (["--batch", "FILE", "--out", "OUT", "--stop", "x"], "prompts.jsonl:2: stop strings need a text prompt"),
        (["--batch", "FILE", "--out", "FILE"], "prompts.jsonl: this is the input itself"),
        (["--batch", "FILE", "--out", "OUT/x"], "there is no such folder"),
        (["--batch", "OUT", "--out", "FILE"], "cannot read it: No such file"),
    )

    def test_options(self, small: Path, prompts: Path, capsys: Capture) -> None:
        places = {"FILE": str(prompts), "OUT": str(prompts.with_name("out.jsonl"))}
        places["OUT/x"] = places["OUT"] + "/x"
        for arguments, words in self.REFUSED:
            assert words in self.refused(capsys, small, *[places.get(argument, argument) for argument in arguments])
            assert [path.name for path in prompts.parent.iterdir()] == ["prompts.jsonl"], arguments

    def test_with_model_one_bad_prompt_stops_all(self, small: Path, bare: Path, prompts: Path, capsys: Capture) -> None:
        out = prompts.with_name("out.jsonl")
        write_lines(prompts, *PROMPTS, {"ids": [300]})
        for torn in (b"", b'{"id": '):
            out.write_bytes(torn)
            said = self.refused(capsys, small, "--batch", prompts, "--out", out)
            assert "prompts.jsonl:7: token 0 of the prompt is 300; this vocabulary has ids 0 to 299" in said
            assert out.read_bytes() == torn, "something was written"
        line = self.refused(capsys, bare, "--batch", prompts, "--out", out)
        assert "prompts.jsonl:1: " in line
        assert "tokenizer" in line

"""Batch files without a model: what a line may be, what is refused, and how a run that was cut off goes on."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from json_lines import write_lines

from glinfer.config import ModelConfig
from glinfer.engine.requests import BatchRequest, BatchResult
from glinfer.engine.run.stats import GenerationStats
from glinfer.errors import FormatError, GlinferError, InputError
from glinfer.formats import BpeModel
from glinfer.jobs import results as results_module
from glinfer.jobs.files import Target
from glinfer.jobs.index import LineIndex
from glinfer.jobs.job import BatchFiles, BatchJob, BatchTotals
from glinfer.jobs.lines import RequestLine, seed_of
from glinfer.jobs.manifest import file_digest
from glinfer.jobs.prompts import PromptForm, PromptRunner, check_prompts
from glinfer.jobs.results import FinishedLines, ResultFile, check_targets
from glinfer.jobs.results import read_finished as read_finished_of
from glinfer.text.tokenizer import Tokenizer

BYTES = Tokenizer(BpeModel((), tuple(bytes([value]) for value in range(256))))
DEFAULTS: dict[str, Any] = {"max_tokens": 4, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
DEFAULTS |= {"repetition_penalty": 1.0, "seed": None, "stop": (), "stop_ids": None}
MADE_WITH = ("weights of the model", "q8")


class FakeModel:
    """Holds ``slots`` prompts at once, finishes the youngest first, and writes its prompt backwards."""

    def __init__(self) -> None:
        self.config = ModelConfig.from_options("vocab=256,dim=4,heads=1,blocks=1,context=64")
        self.device = SimpleNamespace(draws_issued=100)
        self.pulled, self.closed = list[object](), False

    def checked(self, request: BatchRequest) -> Any:
        ids = BYTES.encode(request.prompt) if isinstance(request.prompt, str) else [*map(int, request.prompt)]
        if max(ids) > 255 or len(ids) > 64:
            raise InputError("planted")
        return SimpleNamespace(prompt=ids, max_tokens=request.options["max_tokens"])

    def batch(self, requests: Iterable[BatchRequest], *, slots: int | None = None, **_: Any) -> Iterator[BatchResult]:
        waiting, held = iter(requests), list[BatchRequest]()
        try:
            while True:
                while len(held) < (slots or 2) and (request := next(waiting, None)) is not None:
                    held.append(request)
                    self.pulled.append(request.prompt)
                if not held:
                    return
                request = held.pop()
                prompt = list(request.prompt.encode()) if isinstance(request.prompt, str) else list(request.prompt)
                ids = prompt[::-1][: request.options["max_tokens"]]
                self.device.draws_issued += 7
                stats = GenerationStats(prompt_tokens=len(prompt), tokens=len(ids), finish_reason="length")
                yield BatchResult(request, ids, BYTES.decode(ids) if isinstance(request.prompt, str) else None, stats)
        finally:
            self.closed = True


def read(folder: Path, *lines: object, **defaults: Any) -> list[RequestLine]:
    return read_batch(write_lines(folder / "prompts.jsonl", *lines), {**DEFAULTS, **defaults})


def read_batch(path: Path, defaults: dict[str, Any]) -> list[RequestLine]:
    with LineIndex(PromptForm(defaults, MADE_WITH), path) as index:
        index.scan()
        return list(index.todo())


class Given(PromptForm):
    """Lines that were read before."""

    def __init__(self, lines: list[RequestLine]) -> None:
        super().__init__(DEFAULTS, MADE_WITH)
        self.lines = lines

    def read(self, path: object) -> Iterator[RequestLine]:
        yield from self.lines


def read_finished(out: Path, source: str, lines: list[RequestLine]) -> FinishedLines:
    with LineIndex(Given(lines), source) as index:
        index.scan()
        found = read_finished_of(Target(out), index)
        assert index.finished == found.count
        return found


def finish(
    out: Path, lines: list[RequestLine], model: Any = None, slots: Any = None, *, restart: bool = False, **hooks: Any
) -> BatchTotals:
    """Do what the command does with checked lines: whatever ``out`` does not have yet."""
    made, files = model or FakeModel(), BatchFiles("prompts.jsonl", out, restart=restart)
    with BatchJob(Given(lines), files, {}, manifest_required=False) as job:
        if job.left:
            job.run(PromptRunner(made, slots), draws=lambda: made.device.draws_issued, **hooks)
        else:
            job.finish()
        return job.totals


def results(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]


class TestPrompts:
    def test_ids_are_given_or_the_number_of_the_line(self, tmp_path: Path) -> None:
        lines = read(tmp_path, {"prompt": "é\n"}, b"", {"ids": [1, 2], "id": "b"}, b"  \r", {"prompt": "x", "id": 7})
        found = [(line.number, line.key, line.body.get("prompt", line.body.get("ids"))) for line in lines]
        assert found == [(1, 1, "é\n"), (3, "b", [1, 2]), (5, 7, "x")]
        assert [line.key for line in read(tmp_path, {"prompt": "a"}, {"prompt": "b", "id": "1"})] == [1, "1"]
        path = tmp_path / "x.jsonl"
        path.write_bytes(b'\xef\xbb\xbf{"prompt": "a"}\r\n{"prompt": "b"}')  # as some editors write it
        assert [line.body["prompt"] for line in read_batch(path, DEFAULTS)] == ["a", "b"]

    def test_a_line_overrides_the_defaults_alone(self, tmp_path: Path) -> None:
        own = {"max_tokens": 9, "temperature": 0, "top_k": 3, "top_p": 0.5, "min_p": 0.1, "repetition_penalty": 2}
        own |= {"seed": 5, "stop": "x", "stop_ids": [4]}
        first, second = read(tmp_path, {"prompt": "a", **own}, {"prompt": "b"}, stop=("y",))
        assert first.body == {"prompt": "a", **own, "stop": ["x"]}
        assert second.body == {"prompt": "b", **DEFAULTS, "stop": ["y"], "seed": seed_of(2)}

    def test_seeds_depend_on_the_line_alone(self, tmp_path: Path) -> None:
        given = ({"prompt": "a"}, b"", {"prompt": "b", "seed": 3}, {"prompt": "c"}, {"prompt": "d", "seed": None})
        assert [line.body["seed"] for line in read(tmp_path, *given, seed=10)] == [10, 3, 13, seed_of(5)]
        assert [line.body["seed"] for line in read(tmp_path, *given)] == [seed_of(1), 3, seed_of(4), seed_of(5)]

    NONE = (
        (b'{"prompt": "x"', "this is not JSON (Expecting ',' delimiter, at character 15); expected an object"),
        (b'{"prompt": "caf\xe9"}', "this line is not UTF-8 (byte 15)"),
        (b"[" * 100_000, "this JSON is too large to parse"),
        (b'{"prompt": "x", "seed": ' + b"9" * 5000 + b"}", "this JSON is too large to parse"),
        (["x"], 'found ["x"]; expected a JSON object, such as {"prompt": "Once upon a time"}'),
        ("x" * 1000, "...; expected a JSON object"),
        ({}, 'expected either "prompt" (text) or "ids" (token ids), and not both'),
        ({"prompt": "x", "ids": [1]}, 'expected either "prompt"'),
        ({"prompt": 5}, "prompt is 5; expected text"),
        (b'{"prompt": "a\\ud800"}', "prompt has half a surrogate pair (U+D800) at character 1"),
        (b'{"prompt": "a", "prompt": "b"}', 'the key "prompt" appears twice'),
        ({"ids": []}, "the prompt is empty"),
        ({"ids": "12"}, 'ids is "12"; expected a list of token ids'),
        ({"ids": [1, "2"]}, "ids; expected a sequence of integers"),
        ({"ids": [True]}, "ids; expected a sequence of integers"),
        ({"prompt": "x", "id": 1.0}, "id is 1.0; expected text or an integer"),
        ({"prompt": "x", "id": True}, "id is true; expected text or an integer"),
        (b'{"prompt": "x", "id": "\\udfff"}', "id has half a surrogate pair"),
        ({"prompt": "x", "id": "first"}, 'the id "first" is already on line 1'),
        ({"prompt": "x", "Temperature": 1}, 'unknown key "Temperature"; known: prompt, ids, id, max_tokens, temp'),
        ({"custom_id": "x", "body": {}}, "lora; 'glinfer run-batch' reads such lines"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens is 0; expected an integer of at least 1"),
        ({"prompt": "x", "max_tokens": 2.0}, "max_tokens is 2.0"),
        ({"prompt": "x", "temperature": "hot"}, "temperature is 'hot'"),
        (b'{"prompt": "x", "temperature": NaN}', "found NaN, which is not JSON"),
        (b'{"prompt": "x", "temperature": 1e999}', "temperature is inf"),
        ({"prompt": "x", "top_k": 1.5}, "top_k is 1.5"),
        ({"prompt": "x", "top_p": 2}, "top_p is 2"),
        ({"prompt": "x", "min_p": -1}, "min_p is -1"),
        ({"prompt": "x", "repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"prompt": "x", "seed": -1}, "seed is -1"),
        ({"prompt": "x", "stop": ""}, "stop string 0 is empty"),
        ({"prompt": "x", "stop": ["a", 1]}, "stop is 1; expected text"),
        ({"ids": [1], "stop": "x"}, "stop strings need a text prompt"),
        ({"prompt": "x", "stop_ids": 5}, "stop_ids is 5; expected a list of token ids"),
        ({"prompt": "x", "stop_ids": ["a"]}, "stop_ids; expected a sequence of integers"),
    )

    def test_lines_that_are_none(self, tmp_path: Path) -> None:
        for line, words in self.NONE:
            first, last = ({"prompt": "good", "id": key} for key in ("first", "last"))
            path = write_lines(tmp_path / "prompts.jsonl", first, line, last)
            with pytest.raises(InputError) as caught:
                read_batch(path, DEFAULTS)
            said = str(caught.value)
            assert said.startswith(f"{path}:2: ")
            assert words in said
            assert len(said) < len(str(path)) + 300
        with pytest.raises(InputError, match=r":2: the id 2 is already on line 1; .*has its number for an id"):
            read(tmp_path, {"prompt": "x", "id": 2}, {"prompt": "y"})

    def test_no_prompt_no_file_at_all_and_no_end_of_a_line(self, tmp_path: Path) -> None:
        words = r"prompts\.jsonl: found no prompt in it; expected one JSON object per line"
        for lines in ([], [b"", b"  ", b"\t"]):
            with pytest.raises(InputError, match=words):
                read(tmp_path, *lines)
        path = write_lines(tmp_path / "prompts.jsonl", {"prompt": "x"})
        with path.open("ab") as file:
            file.truncate(1 << 36)  # 64 GB, of which the disk holds nothing, and nothing is read
        with pytest.raises(InputError, match=r"prompts\.jsonl:2: found a line of more than 16 MB"):
            read_batch(path, DEFAULTS)
        for name, words in (("none.jsonl", "cannot read it: No such file"), (".", "a directory")):
            with pytest.raises(FormatError, match=words):
                read_batch(tmp_path / name, DEFAULTS)


def test_what_the_model_cannot_run_is_named_by_its_line(tmp_path: Path) -> None:
    model: Any = FakeModel()
    for line in ({"ids": [1, 256]}, {"prompt": "é" * 33}):
        lines = read(tmp_path, {"prompt": "x"}, b"", line)
        seen: list[tuple[int, int]] = []
        with pytest.raises(InputError, match=r"^p\.jsonl:3: planted$"):
            check_prompts(model, lines, 2, "p.jsonl", lambda *hooks, seen=seen: seen.append(hooks))
        assert seen == [(1, 2)]
    lines = read(tmp_path, {"ids": [0, 255], "stop_ids": [255]}, {"prompt": "x" * 64})
    assert check_prompts(model, lines, 2, "p.jsonl") == 64 + 4


class TestDigest:
    def test_equal_prompts_and_options_have_equal_digests(self, tmp_path: Path) -> None:
        same = {"seed": 5, "temperature": 1, "stop": [], "id": "x", "prompt": "x"}
        first, second = read(tmp_path, {"prompt": "x", "seed": 5}, same)
        assert first.digest == second.digest
        assert len(first.digest) == 16
        other = PromptForm(DEFAULTS, ("weights of another", "q8")).read(tmp_path / "prompts.jsonl")
        assert first.digest != next(other).digest

    def test_what_decides_the_result_changes_it(self, tmp_path: Path) -> None:
        changes: list[dict[str, Any]] = [
            *({"max_tokens": 5}, {"temperature": 0.5}, {"top_k": 1}, {"top_p": 0.5}, {"min_p": 0.5}, {"stop": "y"}),
            *(
                {"repetition_penalty": 1.5},
                {"seed": 0},
                {"stop_ids": []},
                {"keep": 1},
                {"prompt": "y"},
                {"prompt": "\u00e9"},
            ),
        ]
        for change in changes:
            before, after = read(tmp_path, {"prompt": "x", "seed": 1}, {"prompt": "x", "seed": 1, **change})
            assert before.digest != after.digest, change
        text, ids = read(tmp_path, {"prompt": "[1]", "seed": 1}, {"ids": [1], "seed": 1})
        assert text.digest != ids.digest

    def test_the_digest_of_a_directory_is_that_of_its_model(self, tmp_path: Path) -> None:
        (tmp_path / "m").write_bytes(b"abc")
        assert file_digest(tmp_path / "m") == "ba7816bf8f01cfea"
        for name in ("config.json", "model.safetensors"):
            (tmp_path / name).write_bytes(name.encode())
        before = file_digest(tmp_path)
        (tmp_path / "README.md").write_text("notes")
        assert file_digest(tmp_path) == before
        (tmp_path / "config.json").rename(tmp_path / "konfig.json")
        assert file_digest(tmp_path) != before
        (tmp_path / "konfig.json").rename(tmp_path / "config.json")
        (tmp_path / "model.safetensors").write_bytes(b"other")
        assert file_digest(tmp_path) != before


class TestRun:
    LINES = ({"prompt": "abc"}, {"ids": [5, 6, 7], "id": "i"}, {"prompt": "é", "max_tokens": 1}, {"prompt": "xyz12"})

    def test_every_result_is_a_line_in_the_order_of_finishing(self, tmp_path: Path) -> None:
        out, seen = tmp_path / "out.jsonl", list[int]()
        lines = read(tmp_path, *self.LINES)
        totals = finish(out, lines, on_progress=lambda done, _: seen.append(done))
        found = results(out)
        assert [result["id"] for result in found] == ["i", 3, 4, 1]
        counts = {"finish_reason": "length", "prompt_tokens": 3, "tokens": 3, "prompt_sha": lines[1].digest}
        assert found[0] == {"id": "i", "text": None, "ids": [7, 6, 5], **counts}
        assert found[1]["text"] == "\ufffd"
        assert found[3]["text"] == "cba"
        assert out.read_bytes().endswith(b"\n")
        assert seen == [1, 2, 3, 4]
        assert (totals.lines, totals.prompt_tokens, totals.tokens, totals.draws) == (4, 13, 11, 28)
        assert totals.tokens_per_second == totals.tokens / totals.seconds > 0

    def test_each_line_is_in_the_file_before_the_next_prompt_is_taken(self, tmp_path: Path) -> None:
        out, model, there = tmp_path / "out.jsonl", FakeModel(), list[tuple[int, int]]()

        def progress(done: int, _: int) -> None:
            there.append((len(results(out)), len(model.pulled)))

        finish(out, read(tmp_path, *self.LINES), model=model, slots=1, on_progress=progress)
        assert there == [(1, 1), (2, 2), (3, 3), (4, 4)]

    def test_an_engine_left_between_two_results_is_closed(self, tmp_path: Path) -> None:
        out, model = tmp_path / "out.jsonl", FakeModel()

        def stop(*_: int) -> None:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            finish(out, read(tmp_path, *self.LINES), model=model, on_progress=stop)
        assert model.closed
        assert len(results(out)) == 1

    def test_a_torn_last_line_is_dropped_and_done_again(self, tmp_path: Path) -> None:
        lines, out = read(tmp_path, *self.LINES), tmp_path / "out.jsonl"
        finish(out, lines)
        whole = out.read_bytes()
        for cut in (1, 2, 5, 30, 100):
            out.write_bytes(whole[:-cut])
            assert read_finished(out, "p", lines).torn
            assert list(tmp_path.glob(".glinfer-*")) == []
            assert out.read_bytes() == whole[:-cut], "reading has changed the file"
            assert finish(out, lines).lines == 1
            assert out.read_bytes() == whole
        for rest in (b'{"id": 1, "text": "c\n', b'{"i', b"{"):
            out.write_bytes(rest)
            assert read_finished(out, "p", lines) == FinishedLines(0, 0, torn=True)

    def test_what_the_model_refuses_leaves_the_file_as_it_was(self, tmp_path: Path) -> None:
        class Refusing(FakeModel):
            def batch(self, *given: Any, **options: Any) -> Any:
                raise InputError("no memory")

        out = tmp_path / "out.jsonl"
        out.write_bytes(b"something else\n")
        with pytest.raises(InputError, match=r"^no memory$"):
            finish(out, read(tmp_path, *self.LINES), model=Refusing(), restart=True)
        assert out.read_bytes() == b"something else\n"


class TestFinished:
    @pytest.fixture
    def done(self, tmp_path: Path) -> tuple[list[RequestLine], Path]:
        lines = read(tmp_path, *TestRun.LINES)
        finish(tmp_path / "out.jsonl", lines)
        return lines, tmp_path / "out.jsonl"

    def refused(self, out: Path, lines: list[RequestLine]) -> str:
        before = out.read_bytes()
        with pytest.raises(GlinferError) as caught:
            read_finished(out, "p.jsonl", lines)
        assert out.read_bytes() == before
        assert str(caught.value).endswith("give another --out, or --restart to discard it and start over")
        return str(caught.value)

    def test_all_of_it_and_nothing_yet(self, done: tuple[list[RequestLine], Path], tmp_path: Path) -> None:
        lines, out = done
        assert read_finished(out, "p", lines) == FinishedLines(4, out.stat().st_size)
        assert read_finished(tmp_path / "none", "p", lines) == FinishedLines()
        (tmp_path / "empty").touch()
        assert not read_finished(tmp_path / "empty", "p", lines).count

    def test_a_line_that_is_no_result(
        self, done: tuple[list[RequestLine], Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lines, out = done
        first, *others = out.read_bytes().splitlines(keepends=True)
        for broken in (b"", b"{nul", b"\xff", b"[1]", b"{}", b'{"id": 1}', b'{"id": true, "prompt_sha": "x"}'):
            out.write_bytes(first + broken + b"\n" + b"".join(others))
            assert f"{out}:2: this is not a result of an earlier run; " in self.refused(out, lines)
        for data in (b'{"id": 5}\n', b"precious", b"precious\n", b'{"name": "x"', b'{\n  "id": 5\n}\n', b"\0" * 99):
            out.write_bytes(data)
            assert "this is not a result of an earlier run" in self.refused(out, lines)
        monkeypatch.setattr(results_module, "MAX_RESULT_LINE_BYTES", 50)
        out.write_bytes(first)
        with pytest.raises(InputError, match=r"out\.jsonl:1: found a line of more than"):
            read_finished(out, "p", lines)

    def test_a_prompt_that_is_gone_changed_or_finished_twice(
        self, done: tuple[list[RequestLine], Path], tmp_path: Path
    ) -> None:
        lines, out = done
        assert f'{out}:1: there is no prompt "i" in p.jsonl; ' in self.refused(out, [lines[0], *lines[2:]])
        changed = [dict(line) for line in TestRun.LINES]
        changed[2]["prompt"] = "e"
        said = self.refused(out, read(tmp_path, *changed))
        assert f"{out}:2: prompt 3 (p.jsonl:3), its options or the model have changed since this was made; " in said
        out.write_bytes(out.read_bytes() * 2)
        assert f'{out}:5: prompt "i" has an earlier result in this file; ' in self.refused(out, lines)

    def test_an_unfinished_one_may_change(self, done: tuple[list[RequestLine], Path], tmp_path: Path) -> None:
        _, out = done
        out.write_bytes(b"".join(out.read_bytes().splitlines(keepends=True)[:2]))
        lines = read(tmp_path, {"prompt": "other"}, *TestRun.LINES[1:3], {"prompt": "added"}, {"prompt": "more"})
        assert finish(out, lines).lines == 3


class TestOut:
    def test_places_that_cannot_be(self, tmp_path: Path) -> None:
        source = write_lines(tmp_path / "prompts.jsonl", {"prompt": "x"})
        linked, led = tmp_path / "linked", tmp_path / "led"
        check_targets(source, Target(tmp_path / "out.jsonl"))
        assert not (tmp_path / "out.jsonl").exists()
        os.link(source, linked)
        led.symlink_to(source)
        for out in (source, linked, led):
            with pytest.raises(InputError, match="this is the input itself; expected another file"):
                check_targets(source, Target(out))
        for name, words in {
            "missing/out.jsonl": "there is no such folder",
            "prompts.jsonl/out.jsonl": "there is no such folder",
            ".": "found a directory; expected a regular file or a new name",
            "x" * 300: "File name too long",
            os.devnull: "found a device",
        }.items():
            with pytest.raises(FormatError, match=words):
                check_targets(source, Target(tmp_path / name))


class TestOneRunAtATime:
    """Of a file with the results of all prompts but the last, of which it has half a line."""

    @pytest.fixture
    def found(self, tmp_path: Path) -> Callable[[], FinishedLines]:
        lines, out = read(tmp_path, *TestRun.LINES), tmp_path / "out.jsonl"
        finish(out, lines)
        out.write_bytes(out.read_bytes()[:-9])
        return lambda: read_finished(out, "p", lines)

    def test_half_a_line_is_cut_off_in_place(self, found: Callable[[], FinishedLines], tmp_path: Path) -> None:
        out = tmp_path / "out.jsonl"
        before, place = out.read_bytes(), out.stat().st_ino
        with ResultFile(Target(out), found()) as results:
            results.open()
        assert out.read_bytes() == before[: before.rindex(b"\n") + 1]
        assert out.stat().st_ino == place, "the file was replaced, which needs as much room again"
        assert {path.name for path in tmp_path.iterdir()} == {"out.jsonl", Target(out).manifest.name, "prompts.jsonl"}

    @pytest.mark.skipif(sys.platform == "win32", reason="no such locks")
    def test_two_runs_at_once(self, found: Callable[[], FinishedLines], tmp_path: Path) -> None:
        out = Target(tmp_path / "out.jsonl")
        with ResultFile(out, found()) as first:
            first.open()
            before = out.path.read_bytes()
            for seen in (found(), FinishedLines()):  # which starts over
                with ResultFile(out, seen) as second, pytest.raises(InputError, match="another run writes to it; wait"):
                    second.open()
                assert out.path.read_bytes() == before
        with ResultFile(out, found()) as third:
            third.open()

    def test_a_run_that_came_and_went_in_between(self, found: Callable[[], FinishedLines], tmp_path: Path) -> None:
        out, seen = tmp_path / "out.jsonl", found()
        with out.open("ab") as file:
            file.write(b"x")
        before = out.read_bytes()
        with ResultFile(Target(out), seen) as results, pytest.raises(InputError, match="another run"):
            results.open()
        assert out.read_bytes() == before

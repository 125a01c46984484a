"""OpenAI's form of a batch without a model: what a line may be, seeds, shards, earlier results, compressed files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pydantic", reason="pydantic is not installed")

from json_lines import results_in, write_lines

from glinfer.errors import FormatError, GlinferError, InputError
from glinfer.jobs.files import Target
from glinfer.jobs.job import BatchFiles, BatchJob
from glinfer.jobs.lines import LineResult, RequestLine, Shard, seed_of
from glinfer.jobs.requests import URLS, RequestForm, answered, sent_body, unanswered
from glinfer.server.errors import ApiError

FINGERPRINT = {"model": "abc", "weights": "q8", "options": {"gelu": None}}
CHAT = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1000}


def request(key: object = "request-1", **changes: Any) -> dict[str, Any]:
    line = {"custom_id": key, "method": "POST", "url": "/v1/chat/completions", "body": CHAT, **changes}
    return {name: value for name, value in line.items() if value is not ...}


def many(folder: Path, count: int = 20, **changes: Any) -> Path:
    return write_lines(folder / "in.jsonl", *(request(f"r{number}", **changes) for number in range(count)))


class Echo:
    """Answers with the number of the line; requests whose id is in ``failing`` fail."""

    def __init__(self, *failing: str, stop_after: int | None = None) -> None:
        self.failing, self.left, self.seen = failing, stop_after, list[str]()

    def run(self, lines: Iterator[RequestLine]) -> Iterator[LineResult]:
        for line in lines:
            if self.left is not None and not self.left:
                raise KeyboardInterrupt
            self.left = None if self.left is None else self.left - 1
            self.seen.append(line.key)
            usage = {"prompt_tokens": 2, "completion_tokens": 3}
            body = {"choices": [{"text": f"é {line.number}"}], "usage": usage}
            yield answered(line, 500 if line.key in self.failing else 200, "req-1", body)


def run(
    source: Path | str, out: Path | str, echo: Echo | None = None, *, given: Any = FINGERPRINT, **options: Any
) -> Any:
    runner = echo or Echo()
    with BatchJob(RequestForm(), BatchFiles(source, out, **options), given) as job:
        if job.left:
            job.run(runner)
        else:
            job.finish()
        return job.totals


BROKEN = [
    (b"{", "this is not JSON (Expecting property name"),
    (b'[{"custom_id": "a"}]', 'found [{"custom_id": "a"}]; expected a JSON object'),
    (b'{"custom_id": "a", "body": {"seed": 1, "seed": 2}}', 'the key "seed" appears twice'),
    (b'{"custom_id": "a", "body": {"temperature": NaN}}', "found NaN, which is not JSON"),
    ({}, "custom_id is missing; expected custom_id, method, url, body"),
    (request(method=...), "method is missing"),
    (request(url=...), "url is missing"),
    (request(body=...), "body is missing"),
    (request(7), "custom_id is 7; expected text"),
    (request(""), "custom_id is empty; expected text that no other line has"),
    (b'{"custom_id": "\\ud800", "method": "POST", "url": "/v1/completions", "body": {}}', "half a surrogate pair"),
    (request("first"), 'the id "first" is already on line 1; expected ids that differ'),
    (request(method="post"), 'method is "post"; expected "POST"'),
    (request(url="/v1/nonsense"), 'url is "/v1/nonsense"; expected one of /v1/chat/completions, /v1/completions'),
    (request(url="/v1/models"), 'url is "/v1/models"; expected one of'),
    (request(url=5), "url is 5; expected one of"),
    (request(body=[CHAT]), "expected a JSON object"),
    (request(Body=CHAT), 'unknown key "Body"; known: custom_id, method, url, body'),
    ({"id": 1, "prompt": "O"}, "known: custom_id, method, url, body; 'glinfer generate --batch' reads such lines"),
]


class TestLines:
    def test_the_example_of_the_guide(self, tmp_path: Path) -> None:
        lines = request("request-1"), b"", request("request-2", url="/v1/completions")
        path = write_lines(tmp_path / "in.jsonl", *lines)
        first, second = RequestForm().read(path)
        assert (first.number, first.key, first.url, first.body) == (1, "request-1", "/v1/chat/completions", CHAT)
        assert (second.number, second.key, second.url) == (3, "request-2", "/v1/completions")
        assert {"/v1/chat/completions", "/v1/completions", "/v1/score"} <= set(URLS)
        assert not {"/v1/models", "/tokenize", "/health"} & set(URLS)

    def test_a_broken_line_is_named_before_anything_is_written(self, tmp_path: Path) -> None:
        for line, words in BROKEN:
            source = write_lines(tmp_path / "in.jsonl", request("first"), line, request("last"))
            with pytest.raises(InputError) as caught:
                run(source, tmp_path / "out.jsonl")
            said = str(caught.value)
            assert said.startswith(f"{source}:2: ")
            assert words in said
            assert len(said) < len(str(source)) + 400
            assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"], words
        with pytest.raises(InputError, match=r"in\.jsonl: found no request in it; expected one JSON object per line"):
            run(write_lines(tmp_path / "in.jsonl", b"", b" "), tmp_path / "out.jsonl")

    def test_a_line_and_its_result_hash_what_determines_it(self) -> None:
        line = RequestLine(1, "a", "/v1/completions", {"prompt": "x"})
        assert line.digest == RequestLine(9, "a", "/v1/completions", {"prompt": "x"}).digest
        others = [("b", "/v1/completions", {"prompt": "x"}), ("a", "/v1/score", {"prompt": "x"})]
        others.append(("a", "/v1/completions", {"prompt": "y"}))
        assert len({line.digest, *(RequestLine(1, *each).digest for each in others)}) == 4


class TestSeeds:
    def test_a_request_without_one_takes_it_from_its_id(self) -> None:
        bodies: tuple[dict[str, Any], ...] = ({}, {"seed": None})
        for body in bodies:
            first = sent_body(RequestLine(1, "a", "/v1/completions", body))
            assert first == sent_body(RequestLine(7, "a", "/v1/completions", body)) == {"seed": seed_of("a")}
            assert first != sent_body(RequestLine(1, "b", "/v1/completions", body))
        assert sent_body(RequestLine(1, "a", "/v1/completions", {"seed": 0})) == {"seed": 0}
        assert sent_body(RequestLine(1, "a", "/v1/score", {"input": "x"})) == {"input": "x"}
        with pytest.raises(ApiError, match="a batch has no streams; leave stream out"):
            sent_body(RequestLine(1, "a", "/v1/completions", {"stream": True}))
        assert sent_body(RequestLine(1, "a", "/v1/completions", {"stream": False}))["stream"] is False

    def test_they_are_what_the_server_takes_and_spread_over_all(self) -> None:
        found = [seed_of(f"request-{number}") for number in range(1000)]
        assert len(set(found)) == 1000
        assert all(0 <= seed < 1 << 63 for seed in found)
        assert 400 < sum(seed >> 62 for seed in found) < 600
        assert seed_of("request-1") == 0x2C2F9FFF45F98EB7  # for ever, or results would change


class TestRestart:
    @pytest.fixture
    def done(self, tmp_path: Path) -> tuple[Path, Path]:
        """An input of three lines, and its results."""
        source, out = many(tmp_path, 3), tmp_path / "out.jsonl"
        run(source, out)
        return source, out

    @pytest.mark.parametrize(("after", "apart"), [(0, True), (7, False), (19, True)])
    def test_nothing_is_lost_doubled_or_changed(self, tmp_path: Path, after: int, apart: bool) -> None:
        source, out, errors = many(tmp_path), tmp_path / "out.jsonl", tmp_path / "err.jsonl"
        more: dict[str, Any] = {"errors": errors} if apart else {}
        failing = ("r3", "r11")
        with pytest.raises(KeyboardInterrupt):
            run(source, out, Echo(*failing, stop_after=after), **more)
        before = out.read_bytes()
        with out.open("ab") as file:
            file.write(b'{"id": "batch_req_12')
        echo = Echo(*failing)
        totals = run(source, out, echo, **more)
        assert (totals.lines, len(echo.seen)) == (20 - after, 20 - after)
        assert out.read_bytes().startswith(before)
        failed = results_in(errors) if apart else {}
        assert set(results_in(out)) | set(failed) == {f"r{number}" for number in range(20)}
        assert set(failed) == (set(failing) if apart else set())
        assert run(source, out, Echo(), **more).lines == 0

    def test_a_result_has_the_form_of_the_guide(self, tmp_path: Path) -> None:
        source, out = many(tmp_path, 1), tmp_path / "out.jsonl"
        totals = run(source, out)
        (line,) = RequestForm().read(source)
        body = {"choices": [{"text": "é 1"}], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}
        response = {"status_code": 200, "request_id": "req-1", "body": body}
        assert results_in(out) == {"r0": {"id": line.digest, "custom_id": "r0", "response": response, "error": None}}
        assert (totals.prompt_tokens, totals.tokens, totals.failed) == (2, 3, 0)
        lost = unanswered(line, "three times").data
        assert (lost["response"], lost["error"]) == (None, {"code": "process_died", "message": "three times"})

    def test_what_was_made_otherwise_is_refused_with_what_differs(
        self, done: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, out = done
        before = out.read_bytes()
        given = {**FINGERPRINT, "weights": "f32", "gelu": "erf", "models": {"m": "0123456789abcdef"}}
        with pytest.raises(InputError) as caught:
            run(source, out, given=given)
        assert str(caught.value) == (
            f"{out}: its results were made with --gelu default (now erf), another model, --weights q8 (now f32); "
            "give another --out, or --restart to discard them and start over"
        )
        with pytest.raises(InputError, match=r"with --shard 1/1 \(now 1/2\)"):
            run(source, out, shard=Shard(1, 2))
        with pytest.raises(InputError, match=r"with no --errors \(now with\)"):
            run(source, out, errors=out.with_name("err.jsonl"))
        with monkeypatch.context() as patch:
            patch.setattr("glinfer.jobs.manifest.__version__", "9.9")
            with pytest.raises(InputError, match=r"with glinfer [0-9.]+ \(now 9\.9\)"):
                run(source, out)
        with pytest.raises(InputError, match="with another command; give another --out"):
            run(source, out, given={**given, "form": "prompts"})
        assert out.read_bytes() == before
        assert run(source, out, given=given, restart=True).lines == 3

    def test_a_manifest_that_is_none(self, done: tuple[Path, Path]) -> None:
        source, out = done
        manifest = Target(out).manifest
        assert json.loads(manifest.read_text())["weights"] == "q8"
        for data in (b"", b"{", b"[]", b'{"glinfer": 1}', b"\xff"):
            manifest.write_bytes(data)
            with pytest.raises(GlinferError, match="--restart"):
                run(source, out)
        manifest.unlink()
        with pytest.raises(InputError, match=r"its manifest out\.jsonl\.manifest\.json is missing"):
            run(source, out)

    def test_a_changed_request_is_named(self, done: tuple[Path, Path]) -> None:
        source, out = done
        write_lines(source, request("r0"), request("r1", url="/v1/completions"), request("r2"))
        with pytest.raises(InputError, match=r'out\.jsonl:2: request "r1" \(.*in\.jsonl:2\) has changed since'):
            run(source, out)

    def test_other_files_in_the_way_stay(self, tmp_path: Path) -> None:
        source, out, errors = many(tmp_path, 3), tmp_path / "out.jsonl", tmp_path / "err.jsonl"
        run(source, out, errors=errors)
        errors.write_bytes(b"precious")
        with pytest.raises(InputError, match=r"err\.jsonl:1: this is not a result of an earlier run"):
            run(source, out, errors=errors)
        assert errors.read_bytes() == b"precious"
        out = tmp_path / "another.jsonl"
        for given in ({"out": source}, {"out": out, "errors": source}):
            with pytest.raises(InputError, match="this is the input itself"):
                run(source, **given)
        with pytest.raises(InputError, match="this file is given for both results and errors"):
            run(source, out, errors=out)
        assert not out.exists()

    def test_an_input_that_changes_meanwhile(self, tmp_path: Path) -> None:
        source, out = many(tmp_path, 3), tmp_path / "out.jsonl"
        with BatchJob(RequestForm(), BatchFiles(source, out), {}) as job:
            many(tmp_path, 3, url="/v1/completions")
            with pytest.raises(InputError, match="it was changed while it was read"):
                job.run(Echo())
        with BatchJob(RequestForm(), BatchFiles(source, out, restart=True), {}) as job:
            many(tmp_path, 2, url="/v1/completions")
            with pytest.raises(InputError, match="it was changed while it was read"):
                job.run(Echo())


class TestShards:
    def test_each_line_is_in_one_part_whatever_its_place(self, tmp_path: Path) -> None:
        found = dict[str, int]()
        for number in (1, 2, 3):
            echo = Echo()
            run(many(tmp_path, 60), tmp_path / f"out{number}.jsonl", echo, shard=Shard(number, 3))
            assert 10 < len(echo.seen) < 30
            found.update(dict.fromkeys(echo.seen, number))
        assert len(found) == 60
        source = write_lines(tmp_path / "in.jsonl", *(request(f"r{number}") for number in reversed(range(60))))
        echo = Echo()
        run(source, tmp_path / "again.jsonl", echo, shard=Shard(2, 3))
        assert set(echo.seen) == {key for key, number in found.items() if number == 2}
        totals = [run(many(tmp_path, 1), tmp_path / f"o{n}", shard=Shard(n, 2)).lines for n in (1, 2)]
        assert sorted(totals) == [0, 1], "an empty part is done"

    def test_what_is_a_part_and_what_is_none(self) -> None:
        assert str(Shard.parse("2/8")) == "2/8"
        for text in ("", "0/2", "3/2", "1", "1/0", "a/b", "-1/2", "1/2/3", "1.0/2", "1/" + "9" * 12):
            with pytest.raises(InputError, match="expected a part and the number of parts, such as 1/8"):
                Shard.parse(text)


def packer(end: str) -> Callable[[bytes], bytes]:
    if end == ".gz":
        return gzip.compress
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
    return lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data)


@pytest.mark.parametrize("end", [".gz", ".zst"])
class TestCompressed:
    def test_it_is_by_name(self, tmp_path: Path, end: str) -> None:
        pack, data = packer(end), many(tmp_path).read_bytes()
        source, out = tmp_path / f"in.jsonl{end}", tmp_path / f"out.jsonl{end}"
        source.write_bytes(pack(data[:500]) + pack(data[500:]))  # in two pieces, as 'cat' joins them
        with pytest.raises(KeyboardInterrupt):
            run(source, out, Echo(stop_after=5))
        assert not out.exists()
        assert (tmp_path / f"out.jsonl{end}.part").read_bytes().count(b"\n") == 5
        assert run(source, out).lines == 15
        assert len(results_in(out)) == 20
        assert {path.name for path in tmp_path.glob("out*")} == {f"out.jsonl{end}", f"out.jsonl{end}.manifest.json"}
        assert run(source, out).lines == 0
        source.write_bytes(source.read_bytes() + pack(json.dumps(request("one more")).encode()))
        echo = Echo()
        run(source, out, echo)
        assert echo.seen == ["one more"]
        assert len(results_in(out)) == 21

    def test_damage_is_one_line(self, tmp_path: Path, end: str) -> None:
        data = packer(end)(many(tmp_path, 500).read_bytes())
        source = tmp_path / f"in.jsonl{end}"
        for broken in (b"{}\n", data[: len(data) // 2], data[:-60] + bytes([data[-60] ^ 0xFF]) + data[-59:], b""):
            source.write_bytes(broken)
            with pytest.raises(GlinferError) as caught:
                run(source, tmp_path / "out.jsonl")
            assert str(source) in str(caught.value)
            assert not (tmp_path / "out.jsonl").exists()


class TestPlaces:
    def test_addresses_go_to_fsspec(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
        monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
        memory = fsspec.filesystem("memory")
        memory.pipe("/batch/in.jsonl.gz", gzip.compress(many(tmp_path).read_bytes()))
        source, out = "memory://batch/in.jsonl.gz", "memory://batch/out.jsonl.gz"
        with pytest.raises(KeyboardInterrupt):
            run(source, out, Echo(stop_after=5))
        assert not memory.exists("/batch/out.jsonl.gz")
        assert run(source, out).lines == 15
        assert len(results_in(out)) == 20
        assert run(source, out).lines == 0
        with pytest.raises(InputError, match="this is the input itself"):
            run(source, source)
        with pytest.raises(FormatError, match=r"memory://batch/none\.jsonl: cannot read it: no such file"):
            run("memory://batch/none.jsonl", out)
        with pytest.raises(GlinferError, match="nosuch://a/b: cannot read it: Protocol not known"):
            run("nosuch://a/b", out)

    @pytest.mark.parametrize("place", ["source", "out", "errors"])
    @pytest.mark.parametrize(
        ("address", "why"),
        [("nosuch://a/b", "Protocol not known: nosuch"), ("absent://a/b", "Install absentfs to access it")],
    )
    def test_an_unusable_address_is_one_line(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, address: str, why: str
    ) -> None:
        registry = pytest.importorskip("fsspec.registry", reason="fsspec is not installed")
        absent = {"class": "absentfs.FileSystem", "err": "Install absentfs to access it"}
        monkeypatch.setitem(registry.known_implementations, "absent", absent)
        monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
        names: dict[str, Any] = {"source": many(tmp_path), "out": tmp_path / "out.jsonl", place: address}
        echo = Echo()
        with pytest.raises(FormatError) as caught:
            run(names.pop("source"), names.pop("out"), echo, **names)
        assert str(caught.value) == f"{address}: cannot {'read' if place == 'source' else 'write'} it: {why}"
        assert echo.seen == []

    def test_results_that_an_address_refuses_are_kept(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        memory = pytest.importorskip("fsspec", reason="fsspec is not installed").filesystem("memory")
        monkeypatch.setenv("GLINFER_CACHE", str(tmp_path / "cache"))
        out, source = "memory://refused/out.jsonl", many(tmp_path)

        def refuse(*_: Any, **__: Any) -> None:
            raise NotImplementedError  # as fsspec does for http

        with monkeypatch.context() as refusing:
            refusing.setattr(type(memory), "_open", refuse)
            with pytest.raises(
                FormatError, match="cannot write it: NotImplementedError; its lines are kept in"
            ) as caught:
                run(source, out)
        kept = next(Path(tmp_path, "cache").rglob("out.jsonl.part"))
        assert str(kept) in str(caught.value)
        assert len(results_in(kept)) == 20
        assert run(source, out).lines == 0
        assert len(results_in(out)) == 20

    @pytest.mark.parametrize(("name", "package"), [("in.jsonl.zst", "zstandard"), ("memory://in.jsonl", "fsspec")])
    def test_a_missing_package_is_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, package: str
    ) -> None:
        monkeypatch.setitem(__import__("sys").modules, package, None)
        monkeypatch.setitem(__import__("sys").modules, "compression.zstd", None)
        source = name if "://" in name else write_lines(tmp_path / name, request())
        with pytest.raises(InputError, match=rf"need the package {package}, which is not installed; .*pip install"):
            run(source, tmp_path / "out.jsonl")

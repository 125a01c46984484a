"""Lines handed out to members that die: each has one result, a line that kills takes no others with it."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from commands import refused

pytest.importorskip("pydantic", reason="pydantic is not installed")

from own_process import ROOT
from tiers import tiered

from glinfer.errors import ContextError, InputError
from glinfer.gl.egl import EglDevice
from glinfer.jobs import process
from glinfer.jobs.claims import parse_devices, usual_processes
from glinfer.jobs.lines import LineResult, RequestLine
from glinfer.jobs.local import LocalSetup
from glinfer.jobs.pool import MAX_RETRIES, MAX_STARTS, Answered, Died, Events, Failed, Member, Pool, Ready
from glinfer.jobs.process import ProcessMember
from glinfer.jobs.requests import answered


def lines(count: int) -> Iterator[RequestLine]:
    return (RequestLine(number, f"r{number}", "/v1/completions", {}) for number in range(1, count + 1))


class Fake(Member):
    """Has room for three lines, and answers the oldest when it is full or told to."""

    def __init__(self, pool: Fakes, events: Events) -> None:
        self.pool, self.events, self.held = pool, events, list[RequestLine]()
        self.number, self.closed, self.answers = len(pool.members), False, 0
        pool.members.append(self)
        if pool.unready > 0:
            pool.unready -= 1
            events.put((self, Died("SIGSEGV")))
        else:
            events.put((self, Ready(3, "renderer")))

    def send(self, number: int, line: RequestLine) -> None:
        assert not self.closed
        assert len(self.held) < 3
        self.held.append(line)
        self.pool.sent[line.number] += 1
        if line.number in self.pool.poison or self.answers == self.pool.dies_after:
            self.events.put((self, Died("SIGKILL")))
        else:
            self.answers += 1
            self.held.remove(line)
            result = answered(line, 200, "", {"usage": {"prompt_tokens": 2, "completion_tokens": 1}})
            self.events.put((self, Answered.by(number, result, 7 * self.answers)))

    def close(self) -> None:
        self.closed = True


class Fakes:
    def __init__(self, *poison: int, unready: int = 0, dies_after: int | None = None) -> None:
        self.members, self.sent, self.poison = list[Fake](), Counter[int](), poison
        self.unready, self.dies_after = unready, dies_after

    def start(self, events: Events) -> Fake:
        return Fake(self, events)


def ran(fakes: Fakes, count: int, members: int = 2) -> tuple[Pool, dict[int, LineResult]]:
    with Pool([fakes.start] * members) as pool:
        found = list(pool.run(lines(count)))
        draws = pool.draws
    assert all(member.closed for member in fakes.members)
    assert len({each.line.number for each in found}) == len(found) == count
    assert draws == 7 * sum(not each.failed for each in found)
    return pool, {each.line.number: each for each in found}


class TestHandingOut:
    def test_each_line_goes_to_one_member_once(self) -> None:
        for members, count in itertools.product((1, 2, 5), (0, 1, 2, 20)):
            fakes = Fakes()
            pool, found = ran(fakes, count, members)
            assert pool.renderer == "renderer"
            assert fakes.sent == Counter(range(1, count + 1)), (members, count)
            assert not any(each.failed for each in found.values())
            assert all((each.prompt_tokens, each.tokens) == (2, 1) for each in found.values())

    def test_lines_are_taken_when_there_is_room(self) -> None:
        taken, done = list[int](), 0

        def watched() -> Iterator[RequestLine]:
            for line in lines(30):
                taken.append(line.number)
                yield line

        with Pool([Fakes().start] * 2) as pool:
            for _ in pool.run(watched()):
                done += 1
                assert len(taken) <= done + 2 * 3 + 2


class TestDeaths:
    def test_lines_of_a_dead_member_are_run_again(self) -> None:
        fakes = Fakes(dies_after=4)
        pool, found = ran(fakes, 20)
        assert pool.deaths >= 4
        assert not any(each.failed for each in found.values())
        assert max(fakes.sent.values()) <= MAX_RETRIES + 1

    @pytest.mark.parametrize("members", [1, 2])
    def test_a_line_that_kills_has_an_error_and_takes_no_others_with_it(
        self, monkeypatch: pytest.MonkeyPatch, members: int
    ) -> None:
        fakes, held, replace = Fakes(5), list[set[int]](), Pool._replace

        def watched(self: Pool, place: Any, event: Died) -> Iterator[LineResult]:
            held.append({line.number for line in place.held.values()})
            return replace(self, place, event)

        monkeypatch.setattr(Pool, "_replace", watched)
        pool, found = ran(fakes, 20, members)
        assert pool.deaths == fakes.sent[5] == MAX_RETRIES + 1
        assert [number for number, each in found.items() if each.failed] == [5]
        assert len(held[0]) > 1
        assert held[-1] == {5}, "it was not alone the last time"
        assert found[5].data["response"] is None
        said = "the processes that ran it died 3 times: SIGKILL"
        assert found[5].data["error"] == {"code": "process_died", "message": said}
        _, found = ran(Fakes(3, 4, 5, 17), 20, members)
        assert sorted(number for number, each in found.items() if each.failed) == [3, 4, 5, 17]

    def test_deaths_before_a_member_is_ready(self) -> None:
        fakes = Fakes(unready=MAX_STARTS - 1)
        ran(fakes, 5, members=1)
        fakes = Fakes(unready=MAX_STARTS)
        with pytest.raises(ContextError, match="died 5 times in a row before it was ready: SIGSEGV"):
            ran(fakes, 5, members=1)
        assert all(member.closed for member in fakes.members)

    def test_what_a_member_refuses_ends_all(self) -> None:
        class Refusing(Fake):
            def __init__(self, pool: Fakes, events: Events) -> None:
                super().__init__(pool, events)
                events.put((self, Failed(InputError("no such file"))))

        fakes = Fakes(unready=1)
        with pytest.raises(InputError, match=r"^no such file$"), Pool([lambda events: Refusing(fakes, events)]) as pool:
            list(pool.run(lines(3)))

    def test_a_late_word_of_a_member_that_was_replaced_counts_for_nothing(self) -> None:
        fakes = Fakes(2)
        with Pool([fakes.start]) as pool:
            found = []
            for each in pool.run(lines(6)):
                found.append(each.line.number)
                dead = fakes.members[0]
                pool._events.put((dead, Answered.by(6, answered(each.line, 200, "", {}), 0)))
                pool._events.put((dead, Died("again")))
        assert sorted(found) == [1, 2, 3, 4, 5, 6]


class TestMembers:
    """Processes that are none of glinfer's, or that lose their parent."""

    def starting(self, monkeypatch: pytest.MonkeyPatch, path: Path, script: str) -> Any:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(path))
        return lambda events: ProcessMember(LocalSetup([]), events)

    @tiered("said", ["hello", "[1]", '{"number": 1}', '["ready", [1, 2, 3]]', "\\0377"])
    def test_what_says_no_results_is_replaced_and_given_up(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, said: str
    ) -> None:
        start = self.starting(monkeypatch, tmp_path / "python", f"printf '{said}\\n'; exec cat > /dev/null")
        with pytest.raises(ContextError, match="died 5 times in a row before it was ready: its output is not a "):
            Pool([start]).__enter__()

    def test_a_process_that_cannot_be_started(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refused(*given: Any, **named: Any) -> Any:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

        monkeypatch.setattr(subprocess, "Popen", refused)
        with pytest.raises(ContextError, match="no process for a device can be started: Too many open files"):
            Pool([lambda events: ProcessMember(LocalSetup([]), events)]).__enter__()

    def test_a_line_without_its_end_ends_the_process(self) -> None:
        """Who sends lines was killed while it wrote one."""
        for hooks in (b"", b'{"number": 2', b'{"number": 2, "line": {}}'):
            assert list(process._messages(io.BytesIO(b'{"number": 1}\n' + hooks))) == [{"number": 1}], hooks


def test_devices_by_number_or_all_of_hardware(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [EglDevice(0, 1, "EGL_MESA_device_software"), EglDevice(1, 2, ""), EglDevice(2, 3, "")]
    monkeypatch.setattr("glinfer.gl.egl.list_devices", lambda: found)
    for text, devices in {"all": [1, 2], "0": [0], "2,1": [2, 1], "0, 0": [0, 0]}.items():
        assert parse_devices(text) == devices
    for text in ("", "a", "0,", "-1", "1.5", "all,0"):
        with pytest.raises(InputError, match="expected all, or numbers such as 0,1"):
            parse_devices(text)
    with pytest.raises(ContextError, match="there is no EGL device 3; this machine has 3, numbered from 0"):
        parse_devices("0,3")
    assert [usual_processes(nbytes) for nbytes in (0, 1 << 30, (1 << 30) + 1)] == [2, 2, 1]
    del found[1:]
    assert usual_processes(0) == 1


@pytest.mark.gl
class TestProcesses:
    """On one device, which serves as two."""

    def request(self, number: int) -> RequestLine:
        body = {"model": "m", "prompt": "Once"[: 1 + number % 4], "max_tokens": 3 + number % 5}
        return RequestLine(number, f"r{number}", "/v1/completions", body)

    def setup(self, path: Path) -> LocalSetup:
        return LocalSetup([("m", str(path), {})], {"slots": 2})

    @pytest.mark.slow
    def test_one_whose_results_nobody_reads_any_more_ends_without_a_word(self, tmp_path: Path) -> None:
        """Each would say a line of its own where their parent was killed."""
        report = json.dumps(asdict(self.setup(tmp_path / "none.gab"))).encode() + b"\n"
        command, pipe = [sys.executable, "-m", "glinfer.jobs.process"], subprocess.PIPE
        with subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            process.stdin.write(report)
            process.stdin.flush()
            assert process.wait(120) == 1
            assert process.stderr.read() == b""

    def test_what_cannot_be_loaded_is_said_in_one_line(
        self, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        broken, source, out = tmp_path / "broken.gab", tmp_path / "in.jsonl", tmp_path / "out.jsonl"
        broken.write_bytes(small.read_bytes()[:-4])
        source.write_text('{"custom_id": "a", "method": "POST", "url": "/v1/score", "body": {}}\n')
        said = refused(capsys, "run-batch", "-i", source, "-o", out, "--devices", "0", f"m={broken}")
        assert "broken.gab: truncated" in said
        assert not out.exists()
        assert "found both --device and --devices; give one of them" in refused(
            capsys, "run-batch", "-i", source, "-o", out, "--devices", "0", "--device", "0", "m"
        )

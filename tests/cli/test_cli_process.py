"""``python -m glinfer`` as a process of its own: signals, pipes, closed streams, full disks, missing drivers."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
from own_process import COMMAND, DEADLINE, ROOT, finished, interrupted
from tiers import tiered

import glinfer

pytestmark = pytest.mark.gl

NO_DRIVER = {"__EGL_VENDOR_LIBRARY_FILENAMES": "/nonexistent"}


def ran(*arguments: str | Path, env: Mapping[str, str] | None = None, **options: Any) -> CompletedProcess[str]:
    return finished([*COMMAND, *arguments], env={**os.environ, **(env or {})}, **options)


def shell(line: str, *arguments: str | Path) -> CompletedProcess[str]:
    """Run ``line`` in bash, where ``glinfer`` is this package and $1, $2 … are ``arguments``."""
    script = f'glinfer() {{ "{sys.executable}" -m glinfer "$@"; }}; {line}'
    return finished(["bash", "-c", script, "bash", *arguments], encoding="utf-8", errors="replace")


def one_line(done: CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("glinfer: ")
    return done.stderr


class TestEntryPoint:
    def test_the_module_runs(self, small: Path) -> None:
        done = ran("generate", small, "-", "--seed", "1", "--max-tokens", "4", "-q", input="Once upon")
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == glinfer.generate(small, "Once upon", seed=1, max_tokens=4) + "\n"

    @pytest.mark.parametrize("given", [{}, {"OPENBLAS_THREAD_TIMEOUT": "9"}])
    def test_it_ends_without_a_search_for_garbage(self, given: dict[str, str]) -> None:
        """Nor do NumPy's idle threads stay awake for long, unless the user wants it."""
        script = (
            "import atexit, gc, os\n"
            "atexit.register(lambda: print(gc.get_freeze_count() > 0, os.environ['OPENBLAS_THREAD_TIMEOUT']))\n"
            "from glinfer.cli import main\n"
            "main(['--version'])\n"
        )
        usual = {name: value for name, value in os.environ.items() if name != "OPENBLAS_THREAD_TIMEOUT"}
        done = finished([sys.executable, "-c", script], env={**usual, **given})
        assert done.stdout.splitlines()[1:] == [f"True {given.get('OPENBLAS_THREAD_TIMEOUT', '20')}"]


class TestInterrupts:
    @pytest.mark.slow
    def test_ctrl_c_while_it_writes(self, full_file: Path) -> None:
        def first_output(process: subprocess.Popen[bytes]) -> bool:
            assert process.stdout is not None
            return bool(process.stdout.read(1))

        status, errors = interrupted("generate", full_file, "--ids", "1,2,3", when=first_output)
        assert (status, errors.strip()) == (130, "")


class TestTerminal:
    @pytest.mark.slow
    def test_a_talk(self, small: Path) -> None:
        try:
            end, inner = pty.openpty()
        except OSError as error:
            pytest.skip(f"no pseudo-terminals here: {error}")
        command = [*COMMAND, "chat", str(small), "--max-tokens", "3", "--seed", "1"]

        def read_until(words: bytes) -> str:
            said = b""
            while words not in said:
                assert select.select([end], [], [], DEADLINE)[0], f"still waiting for {words!r} after {said!r}"
                said += os.read(end, 4096)
            return said.decode()

        with subprocess.Popen(command, cwd=ROOT, stdin=inner, stdout=inner, stderr=inner) as process:
            os.close(inner)
            try:
                greeting = read_until(b"\n> ")
                assert "uploading weights" in greeting
                assert "Type a message, /help for commands, /quit to leave." in greeting
                os.write(end, b"hi\n")
                assert "17 draws/token · 3 tokens · " in read_until(b"\n> ")
                os.write(end, b"\x04")
                rest = b""
                with suppress(OSError):  # how Linux tells that nobody has the other end any more
                    while part := os.read(end, 4096):
                        rest += part
                assert process.wait(DEADLINE) == 0
                assert b"Traceback" not in rest
            finally:
                process.kill()
                os.close(end)


class TestOutput:
    def test_a_reader_that_goes_away_is_no_error(self, small: Path) -> None:
        with subprocess.Popen(
            # Ids have no token that ends them: it writes until the reader is gone.
            [*COMMAND, "generate", small, "--ids", "5,6", "--seed", "1", "--max-tokens", "60"],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.read(1)
            process.stdout.close()
            errors = process.stderr.read()
            process.wait(timeout=DEADLINE)
        assert (process.returncode, errors) == (0, b"")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
    @tiered("line", ["draws --config ''", "draws --config '' --json", "generate $1 Once"])
    def test_a_full_disk_is_one_line(self, small: Path, line: str) -> None:
        found = one_line(shell(f"glinfer {line} > /dev/full", small))
        assert "cannot write the output: No space left on device" in found

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
    def test_full_standard_error_changes_no_exit_status(self, small: Path) -> None:
        for line, status in (
            ("generate $1 Once --max-tokens 2", 0),
            ("generate $1 ''", 2),
            ("generate --nosuch", 2),
            ("generate $1 Once --max-tokens 2 > /dev/full", 2),
        ):
            done = shell(f"glinfer {line} 2> /dev/full", small)
            assert (done.returncode, bool(done.stdout), done.stderr) == (status, not status, ""), line

    def test_closed_output_is_one_line(self, small: Path) -> None:
        found = one_line(shell("glinfer generate $1 Once --max-tokens 2 >&-", small))
        assert "cannot write the output: standard output is closed" in found

    @pytest.mark.slow
    def test_closed_streams(self, small: Path) -> None:
        assert "the prompt is empty" in one_line(shell("glinfer generate $1 - <&-", small))
        for line, status in (("glinfer chat $1 <&-", 0), ("glinfer info >&- 2>&-", 2)):
            done = shell(line, small)
            assert (done.returncode, done.stdout, done.stderr) == (status, "", "")
        done = shell("glinfer generate $1 Once --max-tokens 2 2>&-", small)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
        for line in ("info >&-", "info --json >&- <&-", "--version >&-"):
            assert "standard output is closed" in one_line(shell(f"glinfer {line}", small))

    @pytest.mark.slow
    def test_a_terminal_that_knows_only_ascii(self, small: Path) -> None:
        for arguments in (["info", small], ["draws", small], ["verify", small], ["generate", small, "é"]):
            done = ran(*arguments, env={"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
            assert done.returncode == 0, done.stderr

    @pytest.mark.slow
    def test_names_that_are_no_utf8(self, small: Path, tmp_path: Path) -> None:
        target = os.fsencode(tmp_path) + b"/caf\xe9.gab"
        for command in (["convert", small, target], ["info", target]):
            done = finished([*COMMAND, *command])
            assert (done.returncode, done.stderr) == (0, "")
        assert Path(os.fsdecode(target)).read_bytes() == small.read_bytes()


class TestWithoutADriver:
    @tiered("line", ["generate $1 Once", "info", "info --device list"])
    def test_one_line_says_what_to_install(self, small: Path, line: str) -> None:
        done = ran(*[small if argument == "$1" else argument for argument in line.split()], env=NO_DRIVER)
        assert "no graphics driver is installed" in one_line(done)
        assert "apt-get install -y libegl1 libgles2 libgl1-mesa-dri" in done.stderr
        assert done.stdout == ""

    @pytest.mark.slow
    def test_what_needs_none_works_without(self, small: Path, tmp_path: Path) -> None:
        done = ran("info", small, "--json", env=NO_DRIVER)
        report = json.loads(done.stdout)
        assert (report["can_run"], report["model"]["fits"]) == (False, True)
        assert one_line(done) == f"glinfer: {report['problem']}\n"
        assert ran("draws", "--config", "", "--json", env=NO_DRIVER).returncode == 0
        assert "cannot read it" in one_line(ran("generate", tmp_path / "none.gab", "x", env=NO_DRIVER))

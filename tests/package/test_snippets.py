"""Every ```python, ```sh and ```console block of README.md and docs runs as it is printed.

A comment on the line before a block says what a reader has to know anyway: ``<!-- not run: REASON -->``, or
``<!-- needs: MODULE -->`` where a package of Python has to be installed.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from markdown_it import MarkdownIt
from own_process import ROOT, finished

from glinfer.cli.app import CONTEXT_SETTINGS, cli

FILES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LANGUAGES = ("python", "sh", "console")
MARK = re.compile(r"<!-- (?P<kind>not run|needs): (?P<what>[^>]+) -->\s*")
VARYING = re.compile(r" · [\d.,]+ tok/s · .*|^[a-z ]+: \d+%\n", re.MULTILINE)
"""The speed, and lines of progress on a slow machine."""


@dataclass(frozen=True)
class Snippet:
    """A block with its place, and what the comment before it says."""

    file: str
    line: int
    language: str
    code: str
    not_run: str
    needs: str

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """The lines of a shell, without comments of their own."""
        lines = self.code.replace("\\\n", "").splitlines()
        if self.language == "console":
            return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def snippets_of(text: str, file: str) -> list[Snippet]:
    """The blocks of one file that can be run, or say why not."""
    found = []
    mark = None
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "html_block":
            mark = MARK.fullmatch(token.content)
        elif token.type == "fence":
            language = token.info.strip()
            if language in LANGUAGES:
                says = {mark["kind"]: mark["what"]} if mark else {}
                line = (token.map or [0])[0] + 1
                notes = says.get("not run", ""), says.get("needs", "")
                found.append(Snippet(file, line, language, token.content, *notes))
            mark = None
        elif token.type not in ("paragraph_close",):
            mark = None
    return found


SNIPPETS = [
    snippet
    for path in FILES
    for snippet in snippets_of(path.read_text(encoding="utf-8"), path.relative_to(ROOT).as_posix())
]
RUN = [each for each in SNIPPETS if not each.not_run]


def checked(words: list[str]) -> None:
    """Parse a command of glinfer without running it: an unknown command or option is an error."""
    with click.Context(cli, info_name="glinfer", **CONTEXT_SETTINGS) as context:  # which they keep
        name, command, rest = cli.resolve_command(context, words)
        assert command is not None
        command.make_context(name, rest, parent=context)


def test_blocks_and_their_marks_are_found() -> None:
    text = (
        "```python\nx = 1\n```\n\n<!-- not run: it waits -->\n```sh\n# a comment\nglinfer chat \\\n  m\n```\n\n"
        "<!-- needs: json -->\n\n```console\n$ ls\nfile\n```\n\n<!-- needs: json -->\n\nwords\n\n```sh\nls\n```\n\n"
        "```text\nno\n```\n"
    )
    found = snippets_of(text, "a.md")
    assert [(each.line, each.language, each.not_run, each.needs) for each in found] == [
        (1, "python", "", ""),
        (6, "sh", "it waits", ""),
        (14, "console", "", "json"),
        (23, "sh", "", ""),
    ]
    assert [each.commands for each in found[1:3]] == [["glinfer chat   m"], ["ls"]]


def test_there_are_snippets_and_most_of_them_run() -> None:
    assert {each.file for each in SNIPPETS} >= {"README.md", "docs/models.md", "docs/diagnostics.md", "docs/kernels.md"}
    assert len(RUN) > len(SNIPPETS) / 2


def test_snippets_are_python_and_commands_with_options_that_exist() -> None:
    for snippet in SNIPPETS:
        if snippet.language == "python":
            compile(snippet.code, snippet.name, "exec")
        for command in snippet.commands if snippet.language != "python" else ():
            words = shlex.split(command, comments=True)
            words = words[: words.index(">")] if ">" in words else words
            if Path(words[0]).name == "glinfer":
                try:
                    checked(words[1:])
                except click.ClickException as error:
                    pytest.fail(f"{snippet.name}: {command}: {error.format_message()}")


def test_a_wrong_option_is_seen() -> None:
    for words, error in ((["generate", "m", "--tokens", "5"], click.NoSuchOption), (["nothing"], click.UsageError)):
        with pytest.raises(error):
            checked(words)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder like a checkout: ``.venv/bin`` has what runs the tests."""
    bin_folder = tmp_path / ".venv" / "bin"
    bin_folder.mkdir(parents=True)
    for name, options in (("glinfer", "-m glinfer "), ("python", "")):  # a link would be outside of its environment
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {options}"$@"\n')
        (bin_folder / name).chmod(0o755)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("snippet", RUN, ids=lambda each: each.name)
def test_snippets_run_as_printed(snippet: Snippet, place: Path) -> None:
    if snippet.needs and importlib.util.find_spec(snippet.needs) is None:
        pytest.skip(f"{snippet.needs} is not installed (make test-all installs it)")
    path = os.pathsep.join([str(place / ".venv" / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)}
    if snippet.language == "python":
        commands = [f"{shlex.quote(sys.executable)} -c {shlex.quote(snippet.code)}"]
    else:
        commands = snippet.commands
    said = ""
    for command in commands:
        done = finished(["bash", "-c", command], cwd=place, env=environment)
        assert done.returncode == 0, f"{command}\n{done.stderr}"
        said += done.stdout + done.stderr
    if snippet.language == "console":
        printed = snippet.code.partition("\n")[2]
        # A terminal shows the prompt before the text, which a pipe does not.
        assert VARYING.sub("", printed).endswith(VARYING.sub("", said))

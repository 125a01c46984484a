"""The names in Containerfile and .dockerignore: sources, extras, system packages and commands that are there."""

from __future__ import annotations

import re

import click
from installs import ROOT, SOURCES

from glinfer.cli.app import cli

TEXT = (ROOT / "Containerfile").read_text("utf-8")


def test_the_build_takes_what_the_wheel_is_made_of() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text("utf-8").splitlines() if line[0] != "#"]
    assert lines[0] == "*", "all else is left out"
    assert {line[1:] for line in lines if line[0] == "!"} == {*SOURCES, ".gitignore"}


def test_its_extras_and_packages_are_those_of_the_project() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8").partition("[project.optional-dependencies]")[2]
    (extras,) = re.findall(r"^ARG EXTRAS=(\S+)$", TEXT, re.MULTILINE)
    assert set(extras.split(",")) <= set(re.findall(r"^([\w-]+) = \[$", project, re.MULTILINE))
    (packages,) = re.findall(r"^readonly GL_PACKAGES=\((.+)\)$", (ROOT / "scripts/setup.sh").read_text("utf-8"), re.M)
    assert f"--no-install-recommends python3 {packages} \\\n" in TEXT


def test_the_commands_of_its_head_are_there() -> None:
    commands = re.findall(r"^#   podman run .* glinfer (\w+)(.*)$", TEXT, re.MULTILINE)
    assert len(commands) >= 3
    for name, words in commands:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None, name
        assert set(re.findall(r"--[\w-]+", words)) <= {option for each in command.params for option in each.opts}

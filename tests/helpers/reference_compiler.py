"""Khronos's reference compiler, and rules on its syntax trees: forms of GLSL that some drivers compute wrongly.

docs/shaders.md says which drivers.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from glinfer.gl.program import VERTEX_SHADER, load_source
from glinfer.kernels import DrawSpec
from glinfer.program.compiled import shading

_LINE = re.compile(r"\d+:(?:\d+|\?)( +)(.*)")
_TYPE = re.compile(r"\b(uint|int|float|bool)\b(?!.*\b(?:uint|int|float|bool)\b)")
_SHIFTS = ("left-shift", "right-shift", "left shift second", "right shift second")
_ORS = ("inclusive-or", "or second child")
_PLAIN = (
    "Constant:",
    "'",
    "Sequence",
    "move second",
    "Convert",
    "Construct",
    "Function Call",
    "Test condition",
    "Branch",
)
_LOW = re.compile(r"\b(?:medium|low)p\b")
_OF_HALVES = ("unpackHalf2x16", "Construct", "direct index", "vector swizzle", "Convert")  # which fit into mediump
_STRUCTURE_OF_INTEGERS = re.compile(r"structure\{[^}]*\bu?int\b")


@dataclass
class Node:
    """A line of a syntax tree."""

    text: str
    parent: Node | None = None
    children: list[Node] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """The type of its elements."""
        found = _TYPE.search(self.children[0].text if self.text == "Constant:" else self.text)
        return found[1] if found else ""


def nodes(tree: str) -> Iterator[Node]:
    """The nodes of all trees in the compiler's output."""
    path: list[tuple[int, Node]] = []
    for line in tree.splitlines():
        found = _LINE.fullmatch(line)
        if found is None:
            continue
        depth, node = len(found[1]), Node(found[2])
        while path and path[-1][0] >= depth:
            path.pop()
        if path:
            node.parent = path[-1][1]
            node.parent.children.append(node)
        path.append((depth, node))
        yield node


def broken_rules(tree: str) -> dict[str, str]:
    """The rules that a tree breaks, with the first line that breaks each."""
    broken: dict[str, str] = {}
    for node in list(nodes(tree)):
        text = node.text
        children = node.children
        around = [*children, *([] if node.parent is None else [node.parent])]
        apart = all(each.text.startswith(_PLAIN) for each in around)
        words = converted = False
        if text.startswith(_SHIFTS):
            words = node.kind == "uint" and children[1].kind != "uint"
            converted = children[0].text.startswith("Convert int to uint")
        rules = {
            "words are shifted by uint amounts": words,
            "uint(i) of an int is not shifted directly": converted,
            "| of ints is not part of an arithmetic expression": text.startswith(_ORS)
            and node.kind == "int"
            and not apart,
            "structs have no integers": _STRUCTURE_OF_INTEGERS.search(text),
            "loops test their condition first": text.startswith("Loop with condition not tested first"),
            "NaN and infinity are found by their bits": text.startswith(("isnan", "isinf")),
            "everything is highp": _LOW.search(text) and not text.startswith(_OF_HALVES),
        }
        for rule, breaks in rules.items():
            if breaks:
                broken.setdefault(rule, text)
    return broken


def sources_of(draws: Iterable[DrawSpec]) -> Iterator[tuple[str, str]]:
    """The kind and text of both shaders of each draw."""
    for draw in draws:
        vertex, defines, _ = shading(draw)
        yield "frag", load_source(f"{draw.shader}.frag", defines, api="es").text
        yield "vert", load_source(vertex, {} if vertex == VERTEX_SHADER else defines, api="es").text


def check_with_reference_compiler(folder: Path, sources: Iterable[tuple[str, str]]) -> None:
    """Check that sources, each after its kind (``frag`` or ``vert``), are GLSL ES and keep the rules."""
    compiler = shutil.which("glslangValidator")
    if compiler is None:
        pytest.skip("glslangValidator is not installed (package glslang-tools)")
    names: dict[str, str] = {}
    for kind, text in sources:
        names.setdefault(text, f"{len(names)}.{kind}")
    for text, name in names.items():
        (folder / name).write_text(text)
    done = subprocess.run(
        [compiler, "-i", *names.values()], cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout, done.stdout
    broken = broken_rules(done.stdout)
    assert not broken, broken

"""The source of the package as its tests read it: each file is parsed once for all rules."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "glinfer"
Nodes = tuple[ast.AST, ...]


@cache
def package_sources() -> dict[str, str]:
    """The text of every module, by its path inside glinfer/."""
    found = {file.relative_to(PACKAGE).as_posix(): file.read_text("utf-8") for file in sorted(PACKAGE.rglob("*.py"))}
    assert "errors.py" in found, "the package was not found: nothing would be checked"
    return found


@cache
def nodes_of(source: str) -> Nodes:
    """All nodes of its syntax tree."""
    return tuple(ast.walk(ast.parse(source)))

"""``--json-schema``, ``--regex``, ``--grammar`` and ``--choices``: structured output."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import options, read_text
from glinfer.structured.structure import OPTIONS, PARTIAL, structure_of

structure_options = options(
    click.option(
        "--json-schema", type=click.Path(), metavar="FILE", help="Generate only JSON that matches the schema in FILE."
    ),
    click.option("--regex", metavar="R", help="Generate text that matches this whole regular expression."),
    click.option(
        "--grammar",
        type=click.Path(),
        metavar="FILE",
        help="Generate text that matches the grammar in FILE, in Lark's notation.",
    ),
    click.option(
        "--choices", multiple=True, metavar="TEXT", help="Generate one of these texts; repeat the option for each."
    ),
    click.option(
        "--partial",
        is_flag=True,
        help="Return incomplete output instead of failing.",
    ),
)
"""The options of structured output, and ``--partial``."""


def take_structured(given: dict[str, Any]) -> dict[str, Any]:
    """Remove these options from ``given``, and return them for :meth:`glinfer.engine.model.Model.stream`, files read.

    Raises:
        InputError: several are given, a file cannot be read, or a structure is invalid.
    """
    found: dict[str, Any] = {kind: given.pop(kind) for kind in OPTIONS}
    found["choices"] = list(found["choices"]) or None
    for kind in ("json_schema", "grammar"):
        if found[kind] is not None:
            found[kind] = read_text(found[kind])
    structure_of(found)
    taken = {kind: value for kind, value in found.items() if value is not None}
    return {**taken, **({"incomplete": PARTIAL} if given.pop("partial") else {})}

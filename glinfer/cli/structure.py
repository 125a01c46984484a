"""``--json-schema``, ``--regex``, ``--grammar`` and ``--choices``: texts that have a structure."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import options, read_text
from glinfer.structured.structure import OPTIONS, PARTIAL, structure_of

structure_options = options(
    click.option(
        "--json-schema", type=click.Path(), metavar="FILE", help="Write JSON of the schema in this file, and no more."
    ),
    click.option("--regex", metavar="R", help="Write a text that matches this regular expression as a whole."),
    click.option(
        "--grammar",
        type=click.Path(),
        metavar="FILE",
        help="Write a text of the grammar in this file, in Lark's notation.",
    ),
    click.option(
        "--choices", multiple=True, metavar="TEXT", help="Write one of these texts; give the option for each of them."
    ),
    click.option(
        "--partial",
        is_flag=True,
        help="Take a text that ends before it has its structure as it is; otherwise that is an error.",
    ),
)
"""The options that ask for a structure, and ``--partial``."""


def take_structured(given: dict[str, Any]) -> dict[str, Any]:
    """Take these options out of ``given``, as :meth:`glinfer.engine.model.Model.stream` has them, files read.

    Raises:
        InputError: several are given, a file cannot be read, or one is no structure.
    """
    found: dict[str, Any] = {kind: given.pop(kind) for kind in OPTIONS}
    found["choices"] = list(found["choices"]) or None
    for kind in ("json_schema", "grammar"):
        if found[kind] is not None:
            found[kind] = read_text(found[kind])
    structure_of(found)
    taken = {kind: value for kind, value in found.items() if value is not None}
    return {**taken, **({"incomplete": PARTIAL} if given.pop("partial") else {})}

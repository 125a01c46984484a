"""``glinfer models``: list the bundled models."""

from __future__ import annotations

import click

from glinfer.cli.common import json_option, megabytes, out, print_json, table
from glinfer.formats import bundled_models


@click.command()
@json_option
def models(as_json: bool) -> None:
    """List the bundled models. Their names can be used wherever a MODEL is asked for."""
    found = bundled_models()
    if as_json:
        keys = ("name", "description", "licence", "parameters", "bits_per_byte", "bytes")
        print_json([{**{key: getattr(model, key) for key in keys}, "path": str(model.path)} for model in found])
        return
    shown = table(
        "name", "size", "parameters", "bits/byte", "licence", "what it is", numbers=("size", "parameters", "bits/byte")
    )
    for model in found:
        shown.add_row(
            model.name,
            megabytes(model.bytes),
            f"{model.parameters:,}",
            f"{model.bits_per_byte:.3f}",
            model.licence,
            model.description,
        )
    out().print(shown)

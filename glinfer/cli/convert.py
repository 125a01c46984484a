"""``glinfer convert``: between checkpoint formats, without loss."""

from __future__ import annotations

from pathlib import Path

import click

from glinfer.cli.common import json_option, megabytes, print_json
from glinfer.formats import load_checkpoint, save_checkpoint


@click.command()
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option(
    "--dtype", type=click.Choice(["float32", "float16"]), default="float32", help="Default float32, lossless."
)
@json_option
def convert(source: str, target: str, dtype: str, as_json: bool) -> None:
    """Write the checkpoint SOURCE as TARGET; TARGET's ending, .gab or .safetensors, chooses the format.

    Every float keeps its bits, so converting back gives the same numbers again; --dtype float16 halves a
    .safetensors file and rounds them. TARGET appears only when it is complete.
    """
    checkpoint = load_checkpoint(source)
    checkpoint.check_finite()
    save_checkpoint(checkpoint, target, dtype=dtype)
    if Path(target).suffix.lower() == ".gab" and checkpoint.config.hidden_act == "gelu":
        click.echo("note: .gab cannot say that this model has the erf form of GELU; run it with --gelu erf", err=True)
    size = Path(target).stat().st_size
    if as_json:
        print_json(
            {
                "source": source,
                "target": target,
                "bytes": size,
                "tensors": len(checkpoint.tensors),
                "parameters": checkpoint.parameter_count,
            }
        )
        return
    contents = f"{len(checkpoint.tensors)} tensors, {checkpoint.parameter_count:,} parameters"
    click.echo(f"wrote {target}: {contents}, {megabytes(size)}")

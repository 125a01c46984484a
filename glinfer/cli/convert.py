"""``glinfer convert``: convert between checkpoint formats, without loss unless fewer bits are asked for."""

from __future__ import annotations

from pathlib import Path

import click

from glinfer.cli.common import json_option, megabytes, print_json
from glinfer.formats import AS_IN_FILE, DTYPES, find_model, load_checkpoint, save_checkpoint
from glinfer.formats.vocabularies import vocabulary_beside


@click.command()
@click.argument("source", type=click.Path())
@click.argument("target", type=click.Path())
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    help="What matrices become. Default: float32; in a .gguf 'file', as they are in SOURCE.",
)
@click.option("--no-tokenizer", is_flag=True, help="Leave the tokenizer out of a .gguf.")
@json_option
def convert(source: str, target: str, dtype: str | None, no_tokenizer: bool, as_json: bool) -> None:
    """Write the checkpoint SOURCE as TARGET; TARGET's ending, .gab, .safetensors or .gguf, chooses the format.

    Without --dtype every float keeps its bits, so converting back gives the same numbers again; a matrix that
    SOURCE has in blocks is unpacked, unless TARGET is a .gguf too. --dtype float16 halves a .safetensors file and
    rounds; a .gguf can have 4 to 8 bits. A .gguf takes the tokenizer beside SOURCE with it, and a Gab becomes a GPT-2
    there. TARGET appears only when it is complete.

    \b
    glinfer convert shakespeare shakespeare.gguf --dtype q8_0
    """
    path = find_model(source)
    checkpoint = load_checkpoint(path)
    checkpoint.check_finite()
    ending = Path(target).suffix.lower()
    vocabulary = vocabulary_beside(path) if ending == ".gguf" and not no_tokenizer else None
    kept = AS_IN_FILE if ending == ".gguf" else "float32"
    save_checkpoint(checkpoint, target, dtype=dtype or kept, tokenizer=vocabulary)
    if ending == ".gab" and checkpoint.config.hidden_act == "gelu":
        click.echo("note: .gab cannot say that this model has the erf form of GELU; run it with --gelu erf", err=True)
    if ending == ".gguf" and vocabulary is None and not no_tokenizer:
        click.echo(f"note: there is no tokenizer beside {source} that a .gguf can hold; the file has none", err=True)
    size, count = Path(target).stat().st_size, len(checkpoint.tensors) + len(checkpoint.packed)
    if as_json:
        print_json(
            {
                "source": source,
                "target": target,
                "bytes": size,
                "tensors": count,
                "parameters": checkpoint.parameter_count,
            }
        )
        return
    contents = f"{count} tensors, {checkpoint.parameter_count:,} parameters"
    click.echo(f"wrote {target}: {contents}, {megabytes(size)}")

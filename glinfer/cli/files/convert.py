"""``glinfer convert``: convert between checkpoint formats, lossless unless fewer bits are requested."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import megabytes, print_json, progress
from glinfer.errors import InputError
from glinfer.export.convert import Converted, convert_model
from glinfer.formats import DTYPES
from glinfer.terminal import emit


@click.command()
@click.argument("source", type=opt.FILE)
@click.argument("target", type=opt.FILE)
@click.option(
    "--dtype",
    type=click.Choice(DTYPES),
    metavar="TYPE",
    help=f"Format of matrices: {', '.join(DTYPES)}. Default: float32; for a .gguf 'file', SOURCE's own.",
)
@click.option(
    "--imatrix",
    type=opt.FILE,
    metavar="TEXT",
    help="Importance of inputs, for few bits: a text to run, or a GGUF file of llama-imatrix.",
)
@click.option("--lora", type=opt.FILE, metavar="DIR", help="LoRA adapter to merge: a PEFT directory or GGUF file.")
@click.option("--lora-scale", type=float, metavar="S", help="Scale of the adapter. Default: 1.")
@opt.tokenizer_option
@click.option("--no-tokenizer", is_flag=True, help="Write only the weights.")
@opt.json_option
def convert(
    source: str, target: str, lora_scale: float | None, no_tokenizer: bool, as_json: bool, **options: Any
) -> None:
    """Convert the checkpoint SOURCE to TARGET; the suffix .gab, .safetensors or .gguf selects the format.

    Without --dtype every float keeps its bits, so converting back restores the same numbers. Matrices in blocks are
    unpacked, unless TARGET is a .gguf too. --dtype float16 halves a .safetensors file, with rounding. A .gguf can use
    2 to 8 bits; --imatrix keeps the errors small for the inputs that TEXT makes large. --lora merges an adapter; the
    merged matrices are float32 without --dtype. A Gab model becomes a GPT-2 in a .gguf. TARGET appears only when it is
    complete, and must not be a file of SOURCE.

    Tokenizer, chat template, end tokens and sampling defaults are copied: into a .gguf, or next to other formats as
    TARGET.bpe or tokenizer.json, tokenizer_config.json and chat_template.jinja, and generation_config.json.

    \b
    glinfer convert shakespeare shakespeare.gguf --dtype q8_0
    glinfer convert model.safetensors model.gguf --dtype q4_k --imatrix text.txt
    glinfer convert model.gguf folder/model.safetensors
    glinfer convert model.gguf merged.gguf --lora adapter --dtype q8_0
    """
    if lora_scale is not None:
        if options["lora"] is None:
            raise InputError("found --lora-scale without --lora; add --lora DIR, or leave out --lora-scale")
        options["lora_scale"] = lora_scale
    if no_tokenizer and options["tokenizer"] is not None:
        raise InputError("found both --tokenizer and --no-tokenizer; give one of them")
    with progress("running the text") as advance:
        made = convert_model(source, target, with_tokenizer=not no_tokenizer, on_progress=advance, **options)
    checkpoint = made.checkpoint
    if Path(target).suffix.lower() == ".gab" and checkpoint.config.hidden_act == "gelu":
        emit("note: .gab cannot record that this model has the erf form of GELU; run it with --gelu erf", err=True)
    if made.parts.tokenizer is None and not no_tokenizer:
        emit(f"note: {target} has no tokenizer: {made.parts.reason}", err=True)
    count = len(checkpoint.tensors) + len(checkpoint.packed)
    if as_json:
        print_json(
            {
                "source": source,
                "target": target,
                "bytes": made.nbytes,
                "tensors": count,
                "parameters": checkpoint.parameter_count,
                "tokenizer": made.parts.tokenizer is not None,
                "chat_template": made.parts.template is not None,
                "sampling": dict(made.parts.sampling),
                "beside": [str(path) for path in made.beside],
            }
        )
        return
    contents = f"{count} tensors, {checkpoint.parameter_count:,} parameters"
    emit(f"wrote {target}: {contents}, {megabytes(made.nbytes)}{_inside(made)}")
    for path in made.beside:
        emit(f"wrote {path}")


def _inside(made: Converted) -> str:
    parts = made.parts
    if made.beside:
        return ""
    has = {"tokenizer": parts.tokenizer, "chat template": parts.template, "sampling defaults": parts.sampling or None}
    *first, last = [name for name, part in has.items() if part is not None] or [""]
    return f", with {', '.join(first)}{' and ' if first else ''}{last}" if last else ""

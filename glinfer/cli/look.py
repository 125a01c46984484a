"""``glinfer look``: plot what a model computes, with a page to browse the pictures."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import (
    context_option,
    device_options,
    gelu_option,
    json_option,
    loaded,
    parse_ids,
    planned_edge,
    print_json,
    progress,
    tokenizer_option,
)
from glinfer.engine.loading import read_model
from glinfer.errors import InputError
from glinfer.inspect.look.options import DEFAULT_TOP, KINDS, LookOptions
from glinfer.inspect.look.output import check_drawing, check_folder
from glinfer.inspect.look.output import look as look_into
from glinfer.terminal import emit


@click.command("look")
@click.argument("model", type=click.Path())
@click.argument("text", required=False)
@click.option("--out", "folder", type=click.Path(), required=True, help="Output folder; created if missing.")
@click.option("--ids", help="Token ids instead of TEXT, such as 13,132,251. Needs no tokenizer.")
@click.option("--what", metavar="W[,W…]", help=f"Kinds of pictures: {', '.join(KINDS)}. Default: all.")
@click.option("--layers", metavar="N[,N…]", help="Blocks: numbers, ranges or patterns (0,3-5,1*). Default: all.")
@click.option("--top", type=int, default=DEFAULT_TOP, show_default=True, help="Number of likeliest tokens to list.")
@click.option("--force", is_flag=True, help="Write into a folder that has other files, which are kept.")
@tokenizer_option
@gelu_option
@context_option
@device_options
@json_option
def look(
    model: str,
    text: str | None,
    folder: str,
    ids: str | None,
    what: str | None,
    layers: str | None,
    top: int,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Plot what MODEL computes as it reads TEXT: PNG files, and a page to browse them.

    The pictures show attention maps of all heads, the residual stream after each block, and the logit lens (the next
    token if the model ended there). Weights are shown as thumbnails and histograms. The reference plan runs, as it has
    separate steps. Open index.html of the folder; look.json has the numbers. Needs matplotlib: glinfer[plots].

    \b
    glinfer look shakespeare "But soft, what light" --out inside/
    glinfer look model.gguf "Once upon" --what lens --layers 0-3 --out inside/
    glinfer look model.safetensors --what weights --out weights/
    """
    check_drawing()
    check_folder(folder, force=force)
    if text is not None and ids is not None:
        raise InputError("found both a TEXT and --ids; give one of them")
    prompt: str | list[int] | None = text if ids is None else parse_ids(ids)
    path, checkpoint = read_model(model, gelu=options["gelu"], context=options["context"])
    wanted = LookOptions.of(checkpoint.config, what, layers, top)
    if (prompt is None) == wanted.runs:
        if wanted.runs:
            raise InputError("found no text to run; give a TEXT or --ids, or use --what weights")
        raise InputError("--what weights does not run the model; leave out TEXT and --ids, or add to --what")
    about = {"name": Path(model).absolute().name, "source": os.fspath(path)}
    if prompt is None:
        edge = planned_edge(options["limits"])
        with progress("drawing") as advance:
            document = look_into(
                checkpoint, folder, wanted, about=about, max_texture_size=edge, force=force, on_progress=advance
            )
    else:
        with (
            loaded(os.fspath(path), plan="reference", weights="file", **options) as opened,
            progress("drawing") as advance,
        ):
            document = look_into(
                checkpoint,
                folder,
                wanted,
                model=opened,
                prompt=prompt,
                about={**about, "renderer": opened.device.description},
                max_texture_size=opened.device.limits.max_texture_size,
                force=force,
                on_progress=advance,
            )
    if as_json:
        print_json(document)
        return
    _tell(folder, document)


def _tell(folder: str, document: dict[str, Any]) -> None:
    pictures = len(document["pictures"])
    emit(f"wrote {pictures} picture{'' if pictures == 1 else 's'} to {folder}")
    if document["next"]:
        likeliest = ", ".join(f"{token['label']} {100 * token['probability']:.1f}%" for token in document["next"][:5])
        emit(f"{len(document['tokens'])} tokens; likeliest next: {likeliest}")
    emit(f"open {Path(folder) / 'index.html'}")

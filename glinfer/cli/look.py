"""``glinfer look``: pictures of what a model computes, and a page to browse them."""

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
@click.option("--out", "folder", type=click.Path(), required=True, help="The folder to write; made if it is not there.")
@click.option("--ids", help="Token ids instead of TEXT, such as 13,132,251. Needs no tokenizer.")
@click.option("--what", metavar="W[,W…]", help=f"Some of {', '.join(KINDS)}. Default: all.")
@click.option("--layers", metavar="N[,N…]", help="Blocks, as numbers, ranges or patterns: 0,3-5,1*. Default: all.")
@click.option(
    "--top", type=int, default=DEFAULT_TOP, show_default=True, help="How many of the likeliest tokens to list."
)
@click.option("--force", is_flag=True, help="Write into a folder that has other files too; they stay.")
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
    """Draw what happens inside MODEL as it reads TEXT: PNG files, and a page to browse them.

    Attention maps of all heads, the stream behind each block, the logit lens (what the model would say next if it ended
    there), and thumbnails and histograms of the weights. The reference plan runs, which has every step by itself.
    Open index.html of the folder in a browser; look.json has the numbers. Needs matplotlib: glinfer[plots].

    \b
    glinfer look shakespeare "But soft, what light" --out inside/
    glinfer look model.gguf "Once upon a time" --what attention,lens --layers 0-3 --out inside/
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
            raise InputError("there is no text to look at; give a TEXT or --ids, or --what weights")
        raise InputError("--what weights runs nothing; leave out TEXT and --ids, or look at more")
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
    emit(f"wrote {pictures} picture{'' if pictures == 1 else 's'} into {folder}")
    if document["next"]:
        likeliest = ", ".join(f"{token['label']} {100 * token['probability']:.1f}%" for token in document["next"][:5])
        emit(f"{len(document['tokens'])} tokens; the model goes on with {likeliest}")
    emit(f"open {Path(folder) / 'index.html'}")

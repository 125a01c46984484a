"""``glinfer look``: plot what a model computes, with a page to browse the pictures."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import loaded, one_of, parse_ids, planned_edge, print_json, progress
from glinfer.engine.loading import read_model
from glinfer.errors import InputError, counted
from glinfer.inspect.look.options import DEFAULT_TOP, KINDS, LookOptions
from glinfer.inspect.look.output import check_folder
from glinfer.inspect.look.output import look as look_into
from glinfer.terminal import emit


@click.command("look")
@click.argument("model", type=opt.FILE)
@click.argument("text", required=False)
@click.option("--out", "folder", type=opt.NamedPath("folder"), required=True, help="Output folder; created if missing.")
@click.option("--ids", help="Token ids instead of TEXT, such as 13,132,251. Needs no tokenizer.")
@opt.image_options
@click.option("--what", metavar="W[,W…]", help=f"Kinds of pictures: {', '.join(KINDS)}. Default: all.")
@click.option("--layers", metavar="N[,N…]", help="Blocks: numbers, ranges or patterns (0,3-5,1*). Default: all.")
@click.option("--top", type=int, default=DEFAULT_TOP, show_default=True, help="Number of likeliest tokens to list.")
@click.option("--force", is_flag=True, help="Write into a folder that has other files, which are kept.")
@opt.tokenizer_option
@opt.gelu_option
@opt.context_option
@opt.device_options
@opt.json_option
def look(
    model: str,
    text: str | None,
    folder: str,
    ids: str | None,
    images: tuple[str, ...],
    what: str | None,
    layers: str | None,
    top: int,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Plot what MODEL computes as it reads TEXT: PNG files, and a page to browse them.

    The pictures show attention maps of all heads, the residual stream after each block, and the logit lens (the
    next token if the model ended there). Weights are shown as thumbnails and histograms. It runs the reference
    plan, which has separate steps. With --image, TEXT is a user's message about the images. Open index.html of the
    folder; look.json has the numbers. Needs matplotlib: glinfer[plots].

    \b
    glinfer look shakespeare "But soft, what light" --out inside/
    glinfer look model.gguf "Once upon" --what lens --layers 0-3 --out inside/
    glinfer look model.safetensors --what weights --out weights/
    """
    check_folder(folder, force=force)
    one_of({"a TEXT": text, "--ids": ids})
    prompt: str | list[int] | None = text if ids is None else parse_ids(ids)
    if images and text is None:
        raise InputError(f"--image goes with a TEXT; {'give one' if ids is None else 'leave out --ids'}")
    path, checkpoint = read_model(model, gelu=options["gelu"], context=options["context"])
    wanted = LookOptions.of(checkpoint.config, what, layers, top)
    if (prompt is None) == wanted.runs:
        if wanted.runs:
            raise InputError("found no text to run; give a TEXT or --ids, or use --what weights")
        raise InputError("--what weights does not run the model; leave out TEXT and --ids, or add to --what")
    with ExitStack() as held:
        how: dict[str, Any] = {"max_texture_size": planned_edge(options["limits"])}
        about: dict[str, Any] = {"name": Path(model).absolute().name, "source": os.fspath(path)}
        if prompt is not None:
            opened = held.enter_context(loaded(os.fspath(path), plan="reference", weights="file", **options))
            prompt = opened.chat_ids([opt.user_message(images, text)]) if images else prompt
            about["renderer"] = opened.device.description
            how = {"max_texture_size": opened.device.limits.max_texture_size, "model": opened, "prompt": prompt}
        advance = held.enter_context(progress("drawing"))
        document = look_into(checkpoint, folder, wanted, about=about, force=force, on_progress=advance, **how)
    if as_json:
        print_json(document)
        return
    pictures, tokens = len(document["pictures"]), len(document["tokens"])
    emit(f"wrote {counted(pictures, 'picture')} to {folder}")
    if document["next"]:
        likeliest = ", ".join(f"{token['label']} {100 * token['probability']:.1f}%" for token in document["next"][:5])
        emit(f"{counted(tokens, 'token')}; likeliest next: {likeliest}")
    emit(f"open {Path(folder) / 'index.html'}")

"""``glinfer tour``: a page that replays the draws of a token in the browser."""

from __future__ import annotations

import tempfile
import webbrowser
from pathlib import Path
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import megabytes
from glinfer.errors import InputError
from glinfer.export.site import LIMITS, is_page
from glinfer.export.tour import export_tour, export_tours
from glinfer.terminal import emit


@click.command("tour")
@click.argument("model", type=opt.FILE)
@click.argument("text", required=False)
@click.option("--out", type=opt.FILE, help="Write the page to this .html file, and do not open it.")
@click.option("--small", type=opt.FILE, help="Write a folder that shows phones the tour of this smaller model.")
@opt.weights_option
@opt.context_option
@opt.gelu_option
@opt.tokenizer_option
@click.option("--limits", type=click.Choice(list(LIMITS)), default="usual", show_default=True, help="Texture size.")
def tour(model: str, text: str | None, out: str | None, small: str | None, **options: Any) -> None:
    """Open a page that runs MODEL on TEXT draw by draw, and shows what each draw computes.

    The page runs the model in the browser, with the reference plan and the fast plan. It has a timeline of all draws,
    their textures and shaders, and chapters that explain them. It is one self-contained file.

    \b
    glinfer tour shakespeare "But soft, what light"
    glinfer tour model.gguf "Once upon a time" --out tour.html
    glinfer tour shakespeare --small tiny --out tour/
    """
    if small is not None and (out is None or is_page(Path(out))):
        raise InputError("--small writes a folder for a web server; name it with --out, as --out tour/")
    if small is None and out is not None and not is_page(Path(out)):
        raise InputError(f"{out}: found another ending than .html; name a page, such as tour.html")
    page = Path(out) if out else Path(tempfile.mkdtemp(prefix="glinfer-tour-")) / "tour.html"
    if small is None:
        made = export_tour(model, page, text, **options)
    else:
        made = export_tours(model, small, page, text, **options)
    for note in made.notes:
        emit(f"note: {note}", err=True)
    plans = ", ".join(f"plan {name} with {draws} draws" for name, draws in made.plan["plans"].items())
    emit(f"wrote {page}: {plans}, {megabytes(made.bytes)}")
    if small is not None:
        emit(f"serve it with: glinfer serve-web {page}")
    elif out is not None or not webbrowser.open(page.as_uri()):
        emit(f"open {page}")

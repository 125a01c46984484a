"""``glinfer export-web`` and ``glinfer serve-web``: export a model as static files for browsers, and serve them."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

import click
from click.core import ParameterSource

from glinfer.cli import options as opt
from glinfer.cli.common import megabytes, print_json, say
from glinfer.errors import InputError
from glinfer.export.drop import CONTEXT, export_drop, published_shapes
from glinfer.export.serve import address, site_server
from glinfer.export.site import LIMITS, ExportedSite, export_web
from glinfer.terminal import emit

_OF_DROP = ("model", "out", "drop", "cache", "context", "as_json")


@click.command("export-web")
@click.argument("model", type=opt.FILE, metavar="MODEL", required=False)
@click.argument("out", type=opt.FILE, required=False)
@click.option(
    "--drop", is_flag=True, help="Write a page that opens GGUF files, without a model; accepts --cache and --context."
)
@opt.plan_option
@opt.weights_option
@opt.cache_option
@opt.context_option
@opt.gelu_option
@opt.tokenizer_option
@click.option(
    "--limits",
    type=click.Choice(list(LIMITS)),
    default="usual",
    show_default=True,
    help="Texture size: 4096 texels a side, which nearly every browser supports, or WebGL2's minimum, 2048.",
)
@click.option(
    "--single-file",
    "single",
    is_flag=True,
    help="Write one self-contained page that opens as a file; OUT may then end in .html.",
)
@opt.json_option
def export_command(model: str | None, out: str | None, drop: bool, single: bool, as_json: bool, **options: Any) -> None:
    """Export MODEL to the folder OUT as a website that runs it in the browser with WebGL2.

    An embedding model becomes a page that searches a folder of texts.

    OUT may be new, empty or an earlier export, and appears only when it is complete. Any static file server can serve
    it, such as 'glinfer serve-web OUT'.

    \b
    glinfer export-web shakespeare site/ --weights q8
    glinfer export-web shakespeare site.html --single-file
    glinfer export-web --drop site/
    """
    if model is None:
        raise click.UsageError(f"Missing argument '{'OUT' if drop else 'MODEL'}'.", click.get_current_context())
    if drop:
        _export_drop(model, out, as_json, options)
        return
    if out is None:
        raise click.UsageError("Missing argument 'OUT'.", click.get_current_context())
    made = export_web(model, out, single=single, **options)
    for note in made.notes:
        emit(f"note: {note}", err=True)
    if as_json:
        print_json(_summary(made, single))
        return
    each = "run" if "embedding" in made.plan else "token"
    what = f"plan {options['plan']}, weights {made.plan['model']['weights']}, {made.draws} draws/{each}"
    emit(f"wrote {out}: {what}, {megabytes(made.bytes)}")
    page = out if made.folder.is_file() else f"{out.rstrip('/')}/index.html"
    emit(f"open {page}" if single else f"to view it: glinfer serve-web {shlex.quote(out)}")


def _export_drop(folder: str, out: str | None, as_json: bool, options: dict[str, Any]) -> None:
    if out is not None:
        raise InputError(f"found two names, {folder} and {out}; with --drop give only the folder of the page")
    given = click.get_current_context()
    for option in given.command.params:
        name = str(option.name)
        if given.get_parameter_source(name) is ParameterSource.COMMANDLINE and name not in _OF_DROP:
            raise InputError(f"found {option.opts[0]}; --drop takes only --cache, --context and --json")
    say(f"making programs for {len(published_shapes())} models, in about half a minute")
    context = CONTEXT if options["context"] is None else options["context"]
    made = export_drop(folder, cache=options["cache"], context=context)
    shapes = [each["name"] for each in made.plan["drop"]["shapes"]]
    if as_json:
        print_json({"folder": str(made.folder), "bytes": made.bytes, "shapes": shapes})
        return
    emit(f"wrote {folder}: a page for {', '.join(shapes)}, {megabytes(made.bytes)}")
    emit(f"to view it: glinfer serve-web {shlex.quote(folder)}")


def _summary(made: ExportedSite, single: bool) -> dict[str, object]:
    model = made.plan["model"]
    return {
        "folder": str(made.folder),
        "bytes": made.bytes,
        "single_file": single,
        "driver": made.plan["driver"],
        "plan": model["plan"],
        "weights": model["weights"],
        "parameters": model["parameters"],
        "draws_per_token": made.draws,
        "requires": made.plan["requires"],
        "notes": list(made.notes),
    }


@click.command("serve-web")
@click.argument("out", type=opt.FILE)
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 chooses a free one."
)
def serve_command(out: str, port: int) -> None:
    """Serve the exported website in OUT on this machine, until Ctrl-C."""
    with site_server(out, port) as server:
        emit(f"serving {out} at {address(server)} (Ctrl-C to stop)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()

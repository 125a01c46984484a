"""``glinfer export-web`` and ``glinfer serve-web``: a model as static files for a browser, and a look at them."""

from __future__ import annotations

import contextlib

import click

from glinfer.cli.common import cache_option, json_option, megabytes, print_json
from glinfer.engine.loading import USUAL_CONTEXT
from glinfer.export.serve import address, site_server
from glinfer.export.site import LIMITS, Exported, export_web
from glinfer.models.choice import DEFAULT_PLAN, DEFAULT_WEIGHTS, PLANS, WEIGHTS


@click.command("export-web")
@click.argument("model", type=click.Path())
@click.argument("out", type=click.Path())
@click.option(
    "--plan",
    type=click.Choice(list(PLANS)),
    default=DEFAULT_PLAN,
    show_default=True,
    help="'fast' runs each token once, 'reference' the published passes over the whole sequence each time.",
)
@click.option(
    "--weights",
    type=click.Choice(list(WEIGHTS)),
    default=DEFAULT_WEIGHTS,
    show_default=True,
    help="How weights are kept: as the file has them, as floats, or in fewer bits, which make a smaller site.",
)
@cache_option
@click.option(
    "--context",
    type=int,
    help="Tokens of the longest sequence. Default: all of the model's positions, "
    f"but at most {USUAL_CONTEXT} where they are rotary.",
)
@click.option("--gelu", type=click.Choice(["tanh", "erf"]), help="The form of GELU. Default: the checkpoint's own.")
@click.option("--tokenizer", type=click.Path(), help="Its .bpe file. Default: the one beside the model, if it fits.")
@click.option(
    "--limits",
    type=click.Choice(list(LIMITS)),
    default="usual",
    show_default=True,
    help="Lay textures out for 4096 texels a side, which nearly every browser has, or within WebGL2's minimum, 2048.",
)
@click.option("--single-file", "single", is_flag=True, help="One page with everything in it, to be opened as a file.")
@json_option
def export_command(
    model: str,
    out: str,
    plan: str,
    weights: str,
    cache: str,
    context: int | None,
    gelu: str | None,
    tokenizer: str | None,
    limits: str,
    single: bool,
    as_json: bool,
) -> None:
    """Write MODEL into the folder OUT as a site that runs it in a browser, with WebGL2 and no server of its own.

    OUT may be new, empty or an earlier export, and appears only when it is complete. Any server of static files can
    offer it: 'glinfer serve-web OUT' does so on this machine.

    \b
    glinfer export-web shakespeare site/ --weights q8
    """
    made = export_web(
        model,
        out,
        plan=plan,
        weights=weights,
        cache=cache,
        context=context,
        gelu=gelu,
        tokenizer=tokenizer,
        limits=limits,
        single=single,
    )
    for note in made.notes:
        click.echo(f"note: {note}", err=True)
    if as_json:
        print_json(_summary(made, single))
        return
    what = f"plan {plan}, weights {made.plan['model']['weights']}, {made.draws} draws a token"
    click.echo(f"wrote {out}: {what}, {megabytes(made.bytes)}")
    click.echo(f"open {out.rstrip('/')}/index.html" if single else f"look at it: glinfer serve-web {out}")


def _summary(made: Exported, single: bool) -> dict[str, object]:
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
@click.argument("out", type=click.Path())
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 for any that is free.")
def serve_command(out: str, port: int) -> None:
    """Serve the exported site in OUT to browsers on this machine, until Ctrl-C."""
    with site_server(out, port) as server:
        click.echo(f"serving {out} at {address(server)} (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()

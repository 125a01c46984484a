"""``glinfer bench``: milliseconds a token."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import click

from glinfer.cli.common import (
    device_options,
    json_option,
    loaded,
    megabytes,
    opened,
    out,
    parse_ids,
    print_json,
    progress,
    table,
)
from glinfer.errors import InputError
from glinfer.formats import find_model, load_checkpoint
from glinfer.models.choice import DEFAULT_PLAN, DEFAULT_WEIGHTS, PLANS, check_choice
from glinfer.tools.bench import BenchReport, bench
from glinfer.tools.bench_decoding import (
    DecodeReport,
    Engine,
    EngineReport,
    Spread,
    bench_decoding,
    contexts_within,
    load_fast,
)
from glinfer.tools.ceiling import CeilingReport, measure_ceilings
from glinfer.tools.demo import demo_folder, write_demo
from glinfer.tools.peers import PEERS, open_peers

_LENGTHS = "1,8,64"
_CONTEXTS = "32,128,512,2000"


@click.command("bench")
@click.argument("model", type=click.Path(), required=False)
@click.option("--plan", type=click.Choice(PLANS), default=DEFAULT_PLAN, show_default=True, help="What to draw.")
@click.option(
    "--weights",
    metavar="F[,F…]",
    help=f"Weight formats of the fast plan, timed in turns. Default: {DEFAULT_WEIGHTS}.",
)
@click.option("--contexts", metavar="N[,N…]", help=f"Tokens in the fast plan's cache. Default: {_CONTEXTS}.")
@click.option("--lengths", metavar="N[,N…]", help=f"Sequence lengths of the reference plan. Default: {_LENGTHS}.")
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Counted runs of each.")
@click.option("--peers", default="", metavar="P[,P…]", help=f"Other engines beside it: {', '.join(PEERS)}.")
@click.option("--ceiling", is_flag=True, help="Measure too what this renderer can do at most.")
@click.option("--gelu", type=click.Choice(["tanh", "erf"]), help="The form of GELU. Default: the checkpoint's own.")
@device_options
@json_option
def bench_command(
    model: str | None,
    plan: str,
    weights: str | None,
    contexts: str | None,
    lengths: str | None,
    runs: int,
    peers: str,
    ceiling: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Time MODEL: median, fastest and slowest run.

    The fast plan decodes blocks of tokens at the end of full contexts, with each token read back and with one
    readback for the block (pipelined), and takes in prompts. The reference plan runs whole forward passes. All that
    is timed takes turns, and warm-ups are not counted. Without MODEL the random weights of 'glinfer demo' are used;
    speed does not depend on them.

    \b
    glinfer bench shakespeare --weights f32,q8 --peers torch
    """
    given = {"--weights": weights, "--contexts": contexts, "--peers": peers, "--ceiling": ceiling}
    if plan == "reference":
        for name, value in given.items():
            if value:
                raise InputError(f"{name} belongs to --plan fast; leave it out or use that plan")
        _bench_reference(model, parse_ids(_LENGTHS if lengths is None else lengths, "lengths"), runs, as_json, options)
        return
    if lengths is not None:
        raise InputError("--lengths belongs to --plan reference; give --contexts, or use that plan")
    formats = formats_of(DEFAULT_WEIGHTS if weights is None else weights)
    found = parse_ids(_CONTEXTS if contexts is None else contexts, "contexts")
    report = _bench_fast(model, formats, found, runs, names_of(peers), ceiling, options)
    if as_json:
        print_json(report.to_json())
    else:
        _show_decoding(report)


def names_of(text: str) -> list[str]:
    """The names between the commas, each once."""
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))


def formats_of(text: str) -> list[str]:
    """The weight formats between the commas.

    Raises:
        InputError: there is none, or no such format.
    """
    formats = names_of(text)
    if not formats:
        raise InputError(f"found {text!r}; name at least one weight format, such as {DEFAULT_WEIGHTS}")
    for name in formats:
        check_choice("fast", name)
    return formats


def path_of(model: str | None) -> str:
    """The model that was given, or the demo's."""
    return str(write_demo(demo_folder())[0]) if model is None else model


def _bench_reference(model: str | None, lengths: list[int], runs: int, as_json: bool, options: dict[str, Any]) -> None:
    path = path_of(model)
    started = time.perf_counter()
    with loaded(path, tokenizer=None, plan="reference", weights="f32", **options) as opened_model:
        load_seconds = time.perf_counter() - started
        with progress("timing") as advance:
            report = bench(opened_model, lengths, runs, load_seconds=load_seconds, on_run=advance)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)


def _show(report: BenchReport) -> None:
    headings = ("tokens", "draws", "median ms", "fastest", "slowest", "tok/s")
    shown = table(*headings, numbers=headings)
    for row in report.rows:
        times = [f"{value:,.2f}" for value in (row.median_ms, row.fastest_ms, row.slowest_ms)]
        shown.add_row(str(row.tokens), str(row.draws), *times, f"{row.tokens_per_second:,.2f}")
    out().print(shown)
    click.echo(
        f"\nplan {report.plan} · {report.rows[0].runs} runs of each · loaded in {report.load_seconds:.2f} s · "
        f"{report.programs} programs · {megabytes(report.texture_bytes)} of textures · {report.renderer}"
    )


def _bench_fast(
    model: str | None,
    formats: list[str],
    contexts: list[int],
    runs: int,
    peers: list[str],
    ceiling: bool,
    options: dict[str, Any],
) -> DecodeReport:
    path = find_model(path_of(model))
    checkpoint = load_checkpoint(path)
    checkpoint.check_finite()
    checkpoint = dataclasses.replace(checkpoint, config=checkpoint.config.with_gelu(options["gelu"]))
    contexts_within(checkpoint.config, contexts)  # before anything slow begins
    with contextlib.ExitStack() as held:
        engines: list[tuple[Engine, EngineReport]] = []
        others = open_peers(peers, checkpoint) if peers else []
        for peer in others:
            held.callback(peer.close)
        started = time.perf_counter()
        device = held.enter_context(opened(options["device"], options["api"], options["limits"]))
        opening = time.perf_counter() - started
        for name in formats:
            with progress(f"loading {name}") as advance:
                bound, engine, about = load_fast(
                    path, name, device, gelu=options["gelu"], opening_seconds=opening, on_upload=advance
                )
            held.callback(bound.close)
            engines.append((engine, about))
        engines += [(peer, EngineReport(peer.label)) for peer in others]
        with progress("timing") as advance:
            report = bench_decoding(
                engines, checkpoint.config, contexts, runs, renderer=device.description, on_run=advance
            )
        if ceiling:
            sizes = [(about.weight_texture or "", about.weight_bytes or 0) for about in report.engines if about.weights]
            with progress("measuring ceilings") as advance:
                report = dataclasses.replace(report, ceiling=measure_ceilings(device, sizes, on_step=advance))
    return report


def _show_decoding(report: DecodeReport) -> None:
    headings = ["engine", "tokens", "ms/token", "tok/s", "pipelined", "prefill ms", "GB/s"]
    if report.ceiling is not None:
        headings.append("peak")
    shown = table(*headings, numbers=tuple(headings[1:]))
    for row in report.rows:
        rates, share = row.rates, report.of_fetch_ceiling(row)
        reached = rates["bytes_per_second"]
        cells = [
            row.label,
            str(row.context),
            _spread(row.decode),
            f"{rates['tokens_per_second']:,.1f}",
            "" if row.pipelined is None else _spread(row.pipelined),
            _shown_ms(row.prefill.median, row.prefill.median),
            "" if reached is None else f"{reached / 1e9:,.1f}",
        ]
        shown.add_row(*cells, *([] if report.ceiling is None else ["" if share is None else f"{100 * share:.0f}%"]))
    out().print(shown)
    click.echo()
    for about in report.engines:
        if about.weights is not None:
            click.echo(_about(about))
    if report.ceiling is not None:
        _show_ceiling(report.ceiling)
    for note in report.notes:
        click.echo(f"note: {note}")
    click.echo(
        f"plan {report.plan} · median (fastest–slowest) of {report.runs} blocks of {report.block_tokens} tokens, "
        f"each token read back, or all together (pipelined) · {report.renderer}"
    )


def _spread(times: Spread) -> str:
    fastest, median, slowest = (
        _shown_ms(value, times.median) for value in (times.fastest, times.median, times.slowest)
    )
    return f"{median} ({fastest}–{slowest})"


def _shown_ms(value: float, scale: float) -> str:
    return f"{value:,.{3 if scale < 1 else 2 if scale < 100 else 0}f}"


def _about(about: EngineReport) -> str:
    textures = about.texture_bytes or {}
    return (
        f"{about.label} · {about.draws} draws/token · {about.programs} programs, compiled and run once in "
        f"{about.compile_seconds:.2f} s · loaded in {about.load_seconds:.2f} s · first token after "
        f"{about.first_token_seconds:.2f} s · {megabytes(sum(textures.values()))} of textures, "
        f"{megabytes(textures.get('cache', 0))} of them cache · {megabytes(about.weight_bytes or 0)} of weights a token"
    )


def _show_ceiling(ceiling: CeilingReport) -> None:
    numbers = ("texture", "G texels/s", "GB/s")
    shown = table("fetching", *numbers, "by", numbers=numbers)
    for rate in ceiling.fetches:
        shown.add_row(
            rate.format.upper(),
            megabytes(rate.texture_bytes),
            f"{rate.texels_per_second / 1e9:,.2f}",
            f"{rate.bytes_per_second / 1e9:,.1f}",
            rate.function,
        )
    out().print(shown)
    click.echo("peak: the weights' bytes a second, as a share of the fetch rate of their texture")
    click.echo(
        f"{ceiling.multiply_adds_per_second / 1e9:,.1f} G multiply-adds/s · a dependent pass {ceiling.pass_us:.1f} µs, "
        f"issuing one {ceiling.issue_us:.1f} µs · a readback {ceiling.readback_us:.1f} µs"
    )

"""``python -m qa batch-speed``: tokens a second of ``glinfer run-batch``, by default sampling and greedy, in turns."""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import json_option, print_json, weights_option
from qa.big_batch import ran
from qa.serve_load import prompt_of

SAMPLINGS: dict[str, dict[str, float]] = {"default": {}, "greedy": {"temperature": 0.0}}


@click.command("batch-speed")
@click.argument("model", default="shakespeare")
@click.option("--lines", type=click.IntRange(1), default=2000, show_default=True, help="Number of requests.")
@click.option("--max-tokens", type=click.IntRange(1), default=64, show_default=True, help="Maximum tokens of each.")
@click.option("--slots", type=click.IntRange(1, 256), default=32, show_default=True, help="Sequences at once.")
@click.option("--devices", multiple=True, metavar="N[,N…]", help="As for run-batch. Repeatable.")
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True, help="Timed runs of each.")
@weights_option
@json_option
def batch_speed(
    model: str,
    lines: int,
    max_tokens: int,
    slots: int,
    devices: tuple[str, ...],
    rounds: int,
    weights: str,
    as_json: bool,
) -> None:
    """Run a batch of MODEL (default: shakespeare) with its default sampling and with greedy decoding.

    The exit status is 1 if two runs with the same sampling give different texts.

    \b
    python -m qa batch-speed --lines 500
    python -m qa batch-speed --weights q8 --slots 64 --devices 0 --devices 0,1
    """
    draw, rates, texts, equal = random.Random(0), dict[tuple[str, str], list[float]](), dict[str, Any](), True
    bodies = [{"model": "m", "prompt": prompt_of(draw), "max_tokens": max_tokens} for _ in range(lines)]
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "in.jsonl"), Path(folder, "out.jsonl")
        for run, place, (sampling, given) in product(range(rounds + 1), devices or ("",), SAMPLINGS.items()):
            with source.open("w") as file:
                for number, body in enumerate(bodies if run else bodies[:slots]):
                    line = {"custom_id": str(number), "method": "POST", "url": "/v1/completions"}
                    file.write(json.dumps({**line, "body": {**body, **given}}) + "\n")
            more = ["--restart", "--slots", str(slots), "--weights", weights, *(["--devices", place] if place else [])]
            told, _ = ran(model, source, out, more)
            if told["failed"]:
                raise click.ClickException(f"expected {told['lines']} answers; {told['failed']} lines failed")
            if run > 0:  # the first ones warm up: their shaders compile
                rates.setdefault((sampling, place), []).append(told["tokens_per_second"])
                results = map(json.loads, out.read_text("utf-8").splitlines())
                found = {each["custom_id"]: each["response"]["body"]["choices"] for each in results}
                equal &= texts.setdefault(sampling, found) == found
    if as_json:
        rows = [{"sampling": name, "devices": place, "rates": found} for (name, place), found in rates.items()]
        print_json({"lines": lines, "slots": slots, "weights": weights, "texts_equal": equal, "rows": rows})
    else:
        medians = {each: statistics.median(found) for each, found in rates.items()}
        for (sampling, place), rate in medians.items():
            share, times = rate / medians["greedy", place], rate / medians[sampling, next(iter(medians))[1]]
            click.echo(
                f"{sampling}, {place or 'one device'}: {rate:,.0f} tok/s, {share:.0%} of greedy, {times:.2f} × first"
            )
        click.echo(f"the texts of each sampling are {'equal' if equal else 'NOT equal'} in all runs")
    click.get_current_context().exit(0 if equal else 1)

"""``glinfer same``: one model and one seed on every renderer and by every plan."""

from __future__ import annotations

import click

from glinfer.cli.common import LIMITS, json_option, out, print_json, progress, read_bytes, table, tokenizer_option
from glinfer.engine.ids import check_ids
from glinfer.engine.loading import read_model
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import InputError
from glinfer.inspect.info import list_devices
from glinfer.models.choice import DEFAULT_PLAN, PLANS, check_choice
from glinfer.text.tokenizer import Tokenizer, find_tokenizer
from glinfer.tools.same import (
    Question,
    SameReport,
    Setting,
    compare_everywhere,
    question_of,
    recorded_texts,
)

_TEMPERATURE = 0.8


@click.command("same")
@click.argument("model", type=click.Path(), default="shakespeare")
@click.option("--prompt", default="ROMEO:", show_default=True, help="What every text begins with.")
@click.option("--tokens", type=click.IntRange(min=1), default=200, show_default=True, help="Of each text.")
@click.option(
    "--seeds",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help=f"How many texts are drawn at temperature {_TEMPERATURE}, beside the likeliest one.",
)
@click.option("--plans", default=",".join(PLANS), show_default=True, help="Which plans, comma separated.")
@click.option("--weights", default="f32", show_default=True, help="Of the fast plan, comma separated.")
@click.option(
    "--against",
    type=click.Path(),
    help="A report that --json has printed, here or elsewhere: its texts are written again, and compared with.",
)
@tokenizer_option
@json_option
def same_command(
    model: str,
    prompt: str,
    tokens: int,
    seeds: int,
    plans: str,
    weights: str,
    against: str | None,
    tokenizer: str | None,
    as_json: bool,
) -> None:
    """Write the same texts on every renderer, by every plan, and compare them token by token.

    MODEL is the bundled one where it is left out. Renderers are all EGL devices, and desktop OpenGL where it opens,
    with the driver's limits and with WebGL2's. The reference plan writes the beginnings only. 'drift' is the largest
    difference of a logit from float64, relative to the range of the logits. The exit status is 1 if a text differs.

    \b
    glinfer same --tokens 100
    glinfer same --json > llvmpipe.json         and on another machine:
    glinfer same --against llvmpipe.json
    """
    path, checkpoint = read_model(model)
    checkpoint.check_finite()
    found, reason = find_tokenizer(path, tokenizer, checkpoint.config)
    recorded = None
    if against is not None:
        report = read_bytes(against)
        question, recorded = question_of(report, checkpoint.config), recorded_texts(report)
    else:
        if found is None:
            raise InputError(reason)
        ids = check_ids(found.encode(prompt), checkpoint.config)
        drawn = [SamplingOptions(temperature=_TEMPERATURE, seed=seed) for seed in range(1, seeds + 1)]
        question = Question(tuple(ids), tokens, (SamplingOptions(temperature=0, seed=0), *drawn))
    with progress("writing") as advance:
        result = compare_everywhere(
            checkpoint, _settings(plans, weights), question, recorded=recorded, on_setting=advance
        )
    if as_json:
        print_json(result.to_json())
    else:
        _show(result, found)
    if not result.passed:
        raise click.exceptions.Exit(1)


def _settings(plans: str, weights: str) -> list[Setting]:
    named, formats = ([name.strip() for name in text.split(",") if name.strip()] for text in (plans, weights))
    for plan in named:
        for kept in formats:
            check_choice(plan, kept if plan == DEFAULT_PLAN else "f32")
    renderers: list[tuple[int | None, str]] = [
        (entry.index, "es") for entry in list_devices() if entry.renderer is not None
    ]
    found = []
    for device, api in [*renderers, (None, "desktop")]:
        for plan in named:
            for kept in formats if plan == DEFAULT_PLAN else ["f32"]:
                found.append(Setting(plan, kept, device, api))
                if plan == DEFAULT_PLAN:
                    found.append(Setting(plan, kept, device, api, LIMITS["webgl2"]))
    return found


def _show(report: SameReport, tokenizer: Tokenizer | None) -> None:
    columns = ("setting", "renderer", "texts", "drift", "where it parts")
    shown = table(*columns, numbers=("texts", "drift"))
    count = len(report.question.samplings)
    for row in report.rows:
        if row.problem:
            shown.add_row(row.setting, row.problem, "", "", "")
            continue
        parts = "; ".join(
            f"text {each.text}, token {each.place}: {_word(each.token, tokenizer)} won by {each.gap:.2g} over "
            f"{_word(each.other, tokenizer)}"
            for each in row.partings
        )
        shown.add_row(row.setting, row.renderer, f"{row.equal}/{count}", f"{row.drift:.1e}", parts)
    out().print(shown)
    click.echo(
        f"\n{count} texts of {report.question.tokens} tokens: " + ("all the same" if report.passed else "DIFFER")
    )


def _word(token: int, tokenizer: Tokenizer | None) -> str:
    return str(token) if tokenizer is None else repr(tokenizer.decode([token]))

"""``glinfer diff``: compare two models, plans, weight formats or renderers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import (
    check_writable,
    one_of,
    parse_ids,
    print_json,
    progress,
    read_text,
    say,
    say_written,
    show,
    show_table,
)
from glinfer.engine.fetching import found_model
from glinfer.errors import InputError, counted, required
from glinfer.formats.files import shown
from glinfer.hub import named_on_a_hub
from glinfer.inspect.diff.compare import (
    DEFAULT_TRACE,
    OTHER_FORMAT,
    REFERENCE_POSITIONS,
    SAME_FORMAT,
    DiffReport,
    RunConfig,
    RunFacts,
    TensorError,
    diff,
)
from glinfer.inspect.diff.weights import WeightsDiff
from glinfer.inspect.tables import Column, Table
from glinfer.quant.formats import DEFAULT_CACHE
from glinfer.terminal import emit
from glinfer.text.labels import shortened

_KEYS = opt.params_of(opt.model_options, opt.tokenizer_option, opt.device_options)
_SIDES = (
    *(Column("", lambda side: side[0]), Column("model", lambda side: side[1].model)),
    *(Column("plan", lambda side: side[1].plan), Column("weights", lambda side: _weights(side[1]))),
    Column("draws", lambda side: side[1].draws, ""),
    *(
        Column("renderer", lambda side: side[1].renderer),
        Column("textures to", lambda side: side[1].max_texture_size, ""),
    ),
)
_CHANGES = (
    *(Column("change", lambda group: group[0].what), Column("tensors", len, "")),
    Column("largest difference", lambda group: group[0].largest, ".3g"),
    Column("relative", lambda group: group[0].relative, ".2e"),
    Column("example", lambda group: group[0].name),
)
_MAX_GROUPS, _WORST_TOKENS, _LONGEST_WORD = 12, 5, 16
_SETTINGS = "KEY=VALUE,…"


@click.command("diff")
@click.argument("model_a", metavar="A")
@click.argument("model_b", metavar="[B]", required=False)
@click.option("--a", "settings_a", multiple=True, metavar=_SETTINGS, help="Settings of A, such as plan=reference.")
@click.option("--b", "settings_b", multiple=True, metavar=_SETTINGS, help="Settings of B, such as weights=q8,device=1.")
@click.option("--prompt", help="Text to run.")
@click.option("--ids", help="Token ids to run, such as 13,132,251.")
@click.option("--text", "text_path", type=opt.FILE, help="UTF-8 file to run, cut where the context ends.")
@click.option("--tokens", type=click.IntRange(min=1), metavar="N", help="Run only the first N tokens.")
@click.option(
    "--tolerance",
    type=float,
    help=f"Relative error up to which values count as equal. Default: {SAME_FORMAT:g} if both keep their weights in "
    f"the same formats, else {OTHER_FORMAT:g}.",
)
@click.option(
    "--positions",
    type=click.IntRange(min=1),
    metavar="N",
    help=f"Compare next tokens at N evenly spread positions. Default: all, or {REFERENCE_POSITIONS} with the "
    "reference plan.",
)
@click.option(
    "--trace",
    type=click.IntRange(min=1),
    default=DEFAULT_TRACE,
    show_default=True,
    metavar="N",
    help="Compare passes over at most N tokens.",
)
@click.option("--all", "show_all", is_flag=True, help="Show every tensor, not only the largest error of each block.")
@click.option("--plot", type=opt.FILE, help="Also write a plot to this .png. Needs matplotlib (glinfer[plots]).")
@opt.json_option
def diff_command(
    model_a: str,
    model_b: str | None,
    settings_a: tuple[str, ...],
    settings_b: tuple[str, ...],
    prompt: str | None,
    ids: str | None,
    text_path: str | None,
    tokens: int | None,
    show_all: bool,
    plot: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Run A and B over the same tokens; report the first pass that differs and its effect on the next token.

    A and B are models as in 'glinfer generate'; without B, A is compared with itself. Settings are options of other
    commands: plan, weights, cache, gelu, context, tokenizer, device, api and limits. Two files are also compared tensor
    by tensor, with a guess at what transformed each. Errors are relative to the largest value of A; 'centred' is a
    stream without its mean, as in the fast plan of a LayerNorm model. KL(A‖B) is in nats.

    The exit status is 1 if a pass, or the logits along the text, differ beyond the tolerance.

    \b
    glinfer diff shakespeare --b weights=q8 --prompt "ROMEO:"
    glinfer diff m.gab --a plan=reference --b limits=webgl2 --prompt "Once upon"
    glinfer diff a.gguf b.gguf --text sample.txt --tokens 200 --plot diff.png
    """
    if one_of({"--prompt": prompt, "--ids": ids, "--text": text_path}) is None:
        raise InputError("found neither --prompt, --ids nor --text; give one of them")
    side_a, side_b = side_of("--a", model_a, settings_a), side_of("--b", model_b or model_a, settings_b)
    if plot is not None:
        check_picture(plot)
    given: str | list[int] = prompt or ""
    if ids is not None:
        given = parse_ids(ids)
    elif text_path is not None:
        given = read_text(text_path)
    for side in (side_a, side_b):
        if named_on_a_hub(side.model) is not None:
            found_model(side.model, tell=say)  # before the bar, because a download shows its own
    with progress("comparing") as advance:
        report = diff(
            side_a, side_b, given, tokens=tokens, shorten=text_path is not None, on_progress=advance, **options
        )
    if plot is not None:
        from glinfer.inspect.diff.pictures import save_picture

        save_picture(report, plot)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report, show_all)
    say_written(plot)
    if not report.passed:
        raise click.exceptions.Exit(1)


def check_picture(path: str) -> None:
    """Refuse a picture that cannot be written, before anything is computed."""
    if Path(path).suffix.lower() != ".png":
        raise InputError(f"{shown(path)}: the picture is a PNG; expected a name ending in .png")
    required("matplotlib", "plots", "the picture needs")
    check_writable(path)


def side_of(option: str, model: str, settings: Sequence[str]) -> RunConfig:
    """Parse settings such as ``weights=q8,device=1`` of a model; InputError if a setting or its value is unknown."""
    found: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for text in settings for piece in text.split(","))):
        key, is_pair, value = part.partition("=")
        if key not in _KEYS:
            raise InputError(
                f"unknown setting {key!r} in {option}; expected KEY=VALUE with a key of {', '.join(_KEYS)}"
            )
        if not is_pair or not value:
            raise InputError(f"setting {part!r} in {option} has no value; expected {key}=…")
        kind = _KEYS[key].type
        if isinstance(kind, click.Choice) and value not in kind.choices:
            raise InputError(f"found {part!r} in {option}; expected {key} to be one of {', '.join(kind.choices)}")
        if kind is click.INT and not value.isdecimal():
            raise InputError(f"found {part!r} in {option}; expected an integer number of tokens")
        if key in found:
            raise InputError(f"{key} is given twice in {option}; give it once")
        found[key] = int(value) if kind is click.INT else opt.LIMITS[value] if key == "limits" else value
    return RunConfig(model, **found)


def _show(report: DiffReport, show_all: bool) -> None:
    show_table(Table("Sides", _SIDES, [("A", report.a), ("B", report.b)]))
    for field, (a, b) in report.config.items():
        emit(f"{field}: {a!r} in A, {b!r} in B")
    if report.weights is not None:
        _show_weights(report.weights)
    emit()
    _show_passes(report, show_all)
    emit()
    _show_along(report)
    emit(f"\n{verdict(report)}")


def _weights(side: RunFacts) -> str:
    kept = ", ".join(side.kept)
    named = side.weights if kept.lower() == side.weights else f"{side.weights} ({kept})"
    return named if side.cache == DEFAULT_CACHE else f"{named}, cache {side.cache}"


def _show_weights(weights: WeightsDiff) -> None:
    groups = weights.groups
    same = len(weights.tensors) - sum(map(len, groups.values()))
    emit(f"\nweights: {same} of {len(weights.tensors)} tensors are identical")
    if not groups:
        return
    show_table(Table("Weights", _CHANGES, list(groups.values())[:_MAX_GROUPS]))
    if len(groups) > _MAX_GROUPS:
        emit(f"and {len(groups) - _MAX_GROUPS} more; --json lists them")


def _show_passes(report: DiffReport, show_all: bool) -> None:
    same = sum(each.identical for each in report.passes)
    emit(
        f"passes: {len(report.passes)} tensors in both plans, over {counted(report.traced, 'token')}; "
        f"{'all' if same == len(report.passes) else same or 'none'} identical bit for bit"
    )
    if same == len(report.passes):
        return
    first = ("name",) if show_all else ("where", "largest in")
    with_draws = any(each.draw is not None for each in report.passes)
    columns = (*first, "relative error", "at", *(["draw"] if with_draws else []), "")
    rows = []
    for where, each in _by_block(report.passes, show_all):
        error = "shapes differ" if each.error is None else "identical" if each.identical else f"{each.error:.2e}"
        row = [where] if show_all else [where, "" if each.identical else each.name]
        row += [error, _at(report, each), *(["" if each.identical else each.draw or ""] if with_draws else [])]
        rows.append([*row, "beyond" if each.beyond(report.tolerance) else ""])
    show(columns, rows, numbers=("relative error",))


def _by_block(passes: Sequence[TensorError], show_all: bool) -> list[tuple[str, TensorError]]:
    """List all tensors by name, or the one with the largest error of each block."""
    if show_all:
        return [(each.name, each) for each in passes]
    worst: dict[str, TensorError] = {}
    for each in passes:
        parts = each.name.split(".")
        where = f"block {parts[1]}" if parts[0] == "blocks" else "embedding" if parts[0] == "embed" else "head"
        height, highest = (math.inf if one.error is None else one.error for one in (each, worst.get(where, each)))
        if where not in worst or height > highest:
            worst[where] = each
    return list(worst.items())


def _at(report: DiffReport, each: TensorError) -> str:
    if each.place is None:
        return "" if each.error == 0 else f"{list(each.shapes[0])} and {list(each.shapes[1])}"
    place = each.place
    parts = [f"token {place.token}{_word(report, report.ids[place.token])}"]
    if place.head is not None:
        parts.append(f"head {place.head}")
    if each.name.endswith(("attn.scores", "attn.probs")):
        parts.append(f"key {place.column}{_word(report, report.ids[place.column])}")
    else:
        parts.append(f"{'id' if each.name in ('logits', 'probs') else 'feature'} {place.column}")
    return ", ".join(parts)


def _word(report: DiffReport, token: int) -> str:
    """Return the text of a token after a space; empty without a tokenizer."""
    word = report.words.get(token)
    if word is None:
        return ""
    return f" {shortened(word, _LONGEST_WORD)!r}"


def _named(report: DiffReport, token: int) -> str:
    return f"{token}{_word(report, token)}"


def _show_along(report: DiffReport) -> None:
    along = report.along
    count, total = len(along.positions), len(report.ids)
    tokens = counted(total, "token")
    where = f"after {tokens}" if count == total else f"at {count} evenly spread positions of {tokens}"
    if count < total and "reference" in (report.a.plan, report.b.plan):
        where += " (the reference plan runs all tokens for each; --positions compares more)"
    emit(f"next token, {where}:")
    if along.identical:
        emit("  all logits are identical bit for bit")
    else:
        mean, median, largest = along.kl
        worst = along.worst_first[0]
        emit(
            f"  KL(A‖B) mean {mean:.2e}, median {median:.2e}, largest {largest:.2e} nats after "
            f"token {worst.position}{_word(report, worst.token)}"
        )
        same = f"{along.agreement:.2%}" if along.agreement < 1 else "100%"
        emit(f"  same likeliest token at {same}; logits within {along.error:.2e}")
    perplexities = along.perplexities()
    if perplexities is not None:
        a, b = perplexities
        change = f" ({b / a - 1:+.3%})" if abs(b / a - 1) >= 5e-6 else ""
        emit(f"  perplexity of the text {a:.4f} and {b:.4f}{change}")
    if along.identical:
        return
    rows = []
    for at in along.worst_first[:_WORST_TOKENS]:
        following = "" if at.following is None else _named(report, at.following)
        tops = _named(report, at.top_a), _named(report, at.top_b) if at.top_b != at.top_a else "the same"
        rows.append((f"{at.position}{_word(report, at.token)}", f"{at.kl:.2e}", *tops, following))
    show(("after token", "KL in nats", "likeliest in A", "in B", "in the text"), rows, numbers=("KL in nats",))


def verdict(report: DiffReport) -> str:
    """Summarise the comparison in one line."""
    first, tolerance = report.first_beyond, f"{report.tolerance:g}"
    if report.identical:
        return "identical bit for bit"
    if first is not None:
        draw = "" if first.draw is None else f", completed by draw {first.draw}"
        error = "shapes differ" if first.error is None else f"{first.error:.2e}"
        return f"DIFFERS: the first tensor beyond the tolerance of {tolerance} is {first.name} ({error}){draw}"
    if not report.passed:
        return f"DIFFERS: tensors are within {tolerance}, but logits along the text are not ({report.along.error:.2e})"
    return f"within the tolerance of {tolerance}"

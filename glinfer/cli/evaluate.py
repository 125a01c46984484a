"""``glinfer eval``: measure the quality of a model on a text."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import megabytes, opened, print_json, progress, read_text, show_table
from glinfer.engine.loading import read_model
from glinfer.errors import InputError, counted
from glinfer.inspect.evaluate import EvalReport, evaluate
from glinfer.inspect.tables import Column, Table
from glinfer.lower.plans import CACHES
from glinfer.quant.formats import WEIGHT_FORMATS
from glinfer.terminal import emit
from glinfer.text.tokenizer import find_tokenizer


@click.command("eval")
@click.argument("model")
@click.option("--text", "text_path", type=opt.FILE, required=True, help="UTF-8 text file to evaluate.")
@click.option("--last", type=float, default=1.0, help="Use only the last part, as a fraction of the text. Default: 1.")
@click.option("--bytes", "most_bytes", type=click.IntRange(min=2), metavar="N", help="Then use only the first N bytes.")
@click.option("--stride", type=int, help="Tokens between windows. Default: half the model's context.")
@opt.tokenizer_option
@click.option(
    "--compare",
    default="",
    metavar="F,F,…",
    help="Further formats to evaluate: of weights (q8), of the cache (cache=f16), or both (q8+cache=f16).",
)
@opt.model_options
@opt.device_options
@opt.json_option
def eval_command(
    model: str,
    text_path: str,
    last: float,
    most_bytes: int | None,
    stride: int | None,
    tokenizer: str | None,
    compare: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how well MODEL predicts a text: bits per byte and perplexity per token.

    The text is run in overlapping windows of the whole context; each window scores the tokens that the previous one
    did not reach. Lower is better; uncompressed text has 8 bits per byte.

    \b
    glinfer eval shakespeare --text tinyshakespeare.txt --last 0.1
    glinfer eval shakespeare --text part.txt --weights f32 --compare f16,q16,q8
    glinfer eval shakespeare --text part.txt --compare cache=f16
    """
    formats = _formats(compare, options["weights"], options["cache"])
    if not 0.0 < last <= 1.0:
        raise InputError(f"--last is {last}; expected a fraction above 0 and at most 1")
    text = read_text(text_path)
    text = text[len(text) - round(len(text) * last) :] if last < 1 else text
    if most_bytes is not None:
        text = text.encode()[:most_bytes].decode("utf-8", errors="ignore")
    path, checkpoint = read_model(model, gelu=options["gelu"], context=options["context"])
    checkpoint.check_finite()
    chosen, reason = find_tokenizer(path, tokenizer, checkpoint.config)
    if chosen is None:
        raise InputError(reason)
    reports: list[EvalReport] = []
    with opened(options) as device:
        for weights, cache in formats:
            with progress(f"evaluating {weights}, cache {cache}") as advance:
                how = {"plan": options["plan"], "weights": weights, "cache": cache, "stride": stride}
                report = evaluate(checkpoint, chosen, device, text, on_progress=advance, **how)
            reports.append(report.compared_with(reports[0]) if reports else report)
    if as_json:
        print_json(reports[0].to_json() if len(reports) == 1 else [report.to_json() for report in reports])
    else:
        _show(reports)


def _formats(text: str, weights: str, cache: str) -> list[tuple[str, str]]:
    """List (weights, cache) of the options and of each item of ``--compare``, which defaults to the options."""
    found = [(weights, cache)]
    known = {*WEIGHT_FORMATS, *(f"cache={name}" for name in CACHES)}
    for item in filter(None, map(str.strip, text.split(","))):
        chosen = dict[str, str]()
        for part in item.split("+"):
            if part not in known:
                expected = f"{', '.join(WEIGHT_FORMATS)}, cache={' or cache='.join(CACHES)}"
                raise InputError(f"found {part!r} in --compare; expected some of {expected}")
            name, _, value = part.rpartition("=")
            key = name or "weights"
            if key in chosen:
                raise InputError(f"found two formats of the {key} in {item!r} in --compare; give one, or put a comma")
            chosen[key] = value
        found.append((chosen.get("weights", weights), chosen.get("cache", cache)))
    return found


def _show(reports: list[EvalReport]) -> None:
    first = reports[0]
    columns = (
        *(Column("weights", "weights"), Column("cache", "cache")),
        *(Column("weight size", "weight_bytes", megabytes), Column("cache size", "cache_bytes", megabytes)),
        *(Column("bits/byte", "bits_per_byte", ".4f"), Column("perplexity", "perplexity", ".3f")),
        Column("change", lambda each: None if each is first else each.bits_per_byte / first.bits_per_byte - 1, "+.3%"),
        *(Column("same top-1", "agreement", ".2%"), Column("ms/token", "milliseconds", ".2f")),
    )
    show_table(Table("Formats", columns if len(reports) > 1 else [*columns[:6], columns[-1]], reports))
    emit(
        f"\n{first.tokens:,} tokens, {first.bytes:,} bytes in {counted(first.windows, 'window')} of {first.context}, "
        f"stride {first.stride} · plan {first.plan} · {sum(each.seconds for each in reports):.1f} s · {first.renderer}"
    )

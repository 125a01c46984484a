"""``glinfer eval``: how well a model predicts a text."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import device_options, json_option, model_options, opened, print_json, progress
from glinfer.errors import InputError
from glinfer.formats import find_model, load_checkpoint
from glinfer.generation.tokenizer import find_tokenizer
from glinfer.tools.evaluate import EvalReport, evaluate


@click.command("eval")
@click.argument("model")
@click.option("--text", "text_path", type=click.Path(), required=True, help="A UTF-8 text file.")
@click.option("--last", type=float, default=1.0, help="Only this last fraction of the text, such as 0.1. Default 1.")
@click.option("--bytes", "most_bytes", type=click.IntRange(min=2), help="Only so many bytes of that, from its start.")
@click.option("--stride", type=int, help="Tokens from window to window. Default: half the model's context.")
@click.option("--tokenizer", type=click.Path(), help="A .bpe file. Default: the one beside the model, if it fits.")
@model_options
@device_options
@json_option
def eval_command(
    model: str,
    text_path: str,
    last: float,
    most_bytes: int | None,
    stride: int | None,
    tokenizer: str | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure how well MODEL predicts a text: bits per byte, and perplexity per token.

    The text goes through the model in windows of its whole context, each scoring the tokens that the window
    before did not reach. Smaller is better; a byte has 8 bits to begin with.

    \b
    glinfer eval shakespeare --text tinyshakespeare.txt --last 0.1
    """
    if not 0.0 < last <= 1.0:
        raise InputError(f"--last is {last}; expected a fraction above 0 and at most 1")
    text = _read(text_path)
    text = text[len(text) - round(len(text) * last) :] if last < 1 else text
    if most_bytes is not None:
        text = text.encode()[:most_bytes].decode("utf-8", errors="ignore")
    path = find_model(model)
    checkpoint = load_checkpoint(path)
    checkpoint.check_finite()
    checkpoint = dataclasses.replace(checkpoint, config=checkpoint.config.with_gelu(options["gelu"]))
    chosen, reason = find_tokenizer(path, tokenizer, checkpoint.config)
    if chosen is None:
        raise InputError(reason)
    with opened(options["device"], options["api"], options["limits"]) as device, progress("evaluating") as advance:
        report = evaluate(checkpoint, chosen, device, text, plan=options["plan"], stride=stride, on_window=advance)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 (byte {error.start}); expected a text file") from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot read it: {getattr(error, 'strerror', None) or error}") from None


def _show(report: EvalReport) -> None:
    click.echo(f"{report.bits_per_byte:.4f} bits/byte · perplexity {report.perplexity:.3f} per token")
    click.echo(
        f"{report.tokens:,} tokens, {report.bytes:,} bytes in {report.windows} windows of {report.context}, "
        f"stride {report.stride} · {report.seconds:.1f} s · plan {report.plan} · {report.renderer}"
    )

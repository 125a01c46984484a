"""``glinfer generate``: continue a prompt."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import click

from glinfer.cli.batch import batch_options, generate_batch, take_batch
from glinfer.cli.common import (
    device_options,
    json_option,
    loaded,
    model_options,
    options,
    parse_ids,
    print_json,
    progress,
    strict_option,
    tokenizer_option,
    utf8,
)
from glinfer.engine.defaults import USUAL
from glinfer.engine.model import Model
from glinfer.engine.sampler import SamplingOptions
from glinfer.engine.stream import GenerationStats, TextStream, TokenStream
from glinfer.errors import InputError

_DEFAULT = "Default: the model's own, else {:g}."
sampling_options = options(
    click.option("--max-tokens", type=click.IntRange(min=1), default=128, help="How many tokens at most. Default 128."),
    click.option(
        "--temperature",
        type=float,
        help=f"0 takes the likeliest token each time. {_DEFAULT.format(USUAL.temperature)}",
    ),
    click.option("--top-k", type=int, help=f"Only the k likeliest tokens; 0 for all. {_DEFAULT.format(USUAL.top_k)}"),
    click.option(
        "--top-p",
        type=float,
        help=f"Only the likeliest tokens up to this probability; 1 for all. {_DEFAULT.format(USUAL.top_p)}",
    ),
    click.option(
        "--min-p",
        type=float,
        help=f"Only tokens at least this fraction as likely as the best; 0 for all. {_DEFAULT.format(USUAL.min_p)}",
    ),
    click.option(
        "--repetition-penalty", type=float, help=f"Above 1: repeat less. {_DEFAULT.format(USUAL.repetition_penalty)}"
    ),
    click.option("--seed", type=int, help="The same seed gives the same text."),
)
"""``--max-tokens`` and the options of the sampler."""


def take_sampling(given: dict[str, Any]) -> dict[str, Any]:
    """Take the sampler's options that a user gave out of ``given``, and check them."""
    taken = {field.name: given.pop(field.name) for field in dataclasses.fields(SamplingOptions)}
    chosen = {name: value for name, value in taken.items() if value is not None}
    SamplingOptions(**chosen)
    return chosen


@click.command()
@click.argument("model", type=click.Path())
@click.argument("prompt", required=False)
@tokenizer_option
@click.option("--ids", help="A prompt of token ids, such as 13,132,251; prints ids. Needs no tokenizer.")
@sampling_options
@click.option("--stop", multiple=True, help="End at this text; may be given several times.")
@batch_options
@model_options
@device_options
@strict_option
@json_option
@click.option("--quiet", "-q", is_flag=True, help="No closing line.")
def generate(model: str, prompt: str | None, ids: str | None, as_json: bool, quiet: bool, **options: Any) -> None:
    """Continue PROMPT with MODEL and stream the text.

    MODEL is a .gab, .safetensors or .gguf file, the directory of a Hugging Face model, the manifest of a Gab, or the
    name of a bundled model. PROMPT is text, or '-' to read it from standard input.
    The closing line on standard error counts draw calls, tokens and speed.

    With --batch, the prompts of a file go through the model together: lines such as {"prompt": "Once"} or
    {"ids": [13, 132]}, with an "id" and options of their own where they want. Each result is a line of OUT as soon
    as it is finished; after an interruption the same command goes on. Line n takes the seed SEED + n - 1.

    \b
    glinfer generate model.gab "Once upon a time" --max-tokens 40 --seed 1
    glinfer generate model.gab --ids 13,132,251 --temperature 0 --json
    glinfer generate model.gab --batch prompts.jsonl --out results.jsonl --seed 1
    """
    batch = take_batch(options, single=prompt is not None or ids is not None)
    if batch is not None:
        chosen = {name: options.pop(name) for name in ("max_tokens", "stop")}
        sampling = take_sampling(options)
        generate_batch(model, batch, sampling=sampling, as_json=as_json, quiet=quiet, **chosen, **options)
        return
    if (prompt is None) == (ids is None):
        raise InputError("give either a PROMPT or --ids, and not both")
    given: str | list[int] = parse_ids(ids) if ids is not None else _text_of(prompt or "")
    max_tokens, stop, sampling = options.pop("max_tokens"), options.pop("stop"), take_sampling(options)
    with loaded(model, **options) as opened:
        stream = opened.stream(given, max_tokens=max_tokens, stop=stop, **sampling)
        if as_json:
            print_json(_collected(opened, given, stream, max_tokens))
            return
        show(stream)
        if not quiet:
            click.echo(closing_line(opened, stream.stats), err=True)


def _text_of(prompt: str) -> str:
    return prompt if prompt != "-" else utf8(sys.stdin.buffer.read(), "standard input")


def show(stream: TextStream | TokenStream) -> None:
    """Print pieces of text as they come, or ids separated by commas."""
    for number, piece in enumerate(stream):
        if isinstance(piece, int):
            click.echo(f"{',' if number else ''}{piece}", nl=False)
        else:
            click.echo(piece, nl=False)
    click.echo()


def closing_line(model: Model, stats: GenerationStats) -> str:
    """The line after a text: ``39 draws/token · 40 tokens · 250 tok/s · OpenGL ES 3.2 Mesa 22.3.6 · llvmpipe (…)``."""
    parts = [
        f"{stats.draws_per_token:g} draws/token",
        f"{stats.tokens} tokens",
        f"{stats.tokens_per_second:.2f} tok/s",
        model.device.description,
    ]
    if stats.dropped:
        context = model.config.max_position_embeddings
        parts.insert(0, f"the context of {context} tokens was full: the oldest {stats.dropped} were dropped")
    return " · ".join(parts)


def _collected(
    model: Model, prompt: str | list[int], stream: TextStream | TokenStream, max_tokens: int
) -> dict[str, Any]:
    pieces: list[str] = []
    with progress("generating") as advance:
        for piece in stream:
            if isinstance(piece, str):
                pieces.append(piece)
            advance(stream.stats.tokens, max_tokens)
    stats = stream.stats
    return {
        "prompt": prompt,
        "text": "".join(pieces) if isinstance(stream, TextStream) else None,
        "ids": stream.ids,
        "finish_reason": stats.finish_reason,
        "prompt_tokens": stats.prompt_tokens,
        "prompt_seconds": stats.prompt_seconds,
        "tokens": stats.tokens,
        "dropped": stats.dropped,
        "draws_per_token": stats.draws_per_token,
        "seconds": stats.seconds,
        "tokens_per_second": stats.tokens_per_second,
        "plan": model.plan.name,
        "weights": model.weights,
        "cache": model.cache,
        "renderer": model.device.description,
    }

"""``glinfer demo``: generate text at once, with or without a model of one's own."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import device_options, loaded, model_options
from glinfer.cli.generate import closing_line, show
from glinfer.engine.random_model import demo_folder, write_demo
from glinfer.errors import InputError

_PROMPT = "ROMEO:"
_BUNDLED = "shakespeare"
_TEMPERATURE, _SEED = 0.8, 1


@click.command()
@click.option("--model", type=click.Path(), help="A checkpoint or a bundled model. Default: shakespeare.")
@click.option("--tokenizer", type=click.Path(), help="Its .bpe file. Default: the one beside the model, if it fits.")
@click.option("--random", is_flag=True, help="Instead of a model: random weights of Gab's full shape.")
@click.option("--prompt", default=_PROMPT, show_default=True, help="The text to continue.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=40, show_default=True, help="How many tokens.")
@model_options
@device_options
def demo(model: str | None, tokenizer: str | None, random: bool, prompt: str, max_tokens: int, **options: Any) -> None:
    """Stream text from a model and say what it cost.

    The bundled model has Gab's architecture at half its width. With --random the shape is Gab's own, and the
    weights are noise, 101 MB, written once into the cache directory: draw calls, textures and speed are those
    of the real model, the text is not.
    """
    if random and model is not None:
        raise InputError("--random stands in place of --model; leave one of them out")
    if model is None and tokenizer is not None:
        raise InputError("--tokenizer belongs to --model; add it, or leave --tokenizer out")
    if random:
        folder = demo_folder()
        click.echo(f"Random weights of Gab's shape, kept in {folder}: the text below is NOISE.", err=True)
        checkpoint, vocabulary = write_demo(folder)
        model, tokenizer = str(checkpoint), str(vocabulary)
    with loaded(_BUNDLED if model is None else model, tokenizer=tokenizer, **options) as opened:
        stream = opened.stream(prompt, max_tokens=max_tokens, temperature=_TEMPERATURE, seed=_SEED)
        click.echo(prompt, nl=False)
        show(stream)
        click.echo(closing_line(opened, stream.stats))

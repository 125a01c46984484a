"""``glinfer demo``: the main job at once, with or without a model of one's own."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import device_options, loaded, model_options
from glinfer.cli.generate import closing_line, show
from glinfer.errors import InputError
from glinfer.tools.demo import demo_folder, write_demo

_PROMPT = "Once upon a time"


@click.command()
@click.option("--model", type=click.Path(), help="Your own checkpoint. Default: random weights of Gab's shape.")
@click.option("--tokenizer", type=click.Path(), help="Its .bpe file. Default: the one beside the model, if it fits.")
@click.option("--prompt", default=_PROMPT, show_default=True, help="The text to continue.")
@click.option("--max-tokens", type=click.IntRange(min=1), default=40, show_default=True, help="How many tokens.")
@model_options
@device_options
def demo(model: str | None, tokenizer: str | None, prompt: str, max_tokens: int, **options: Any) -> None:
    """Stream text from a model of Gab's shape and say what it cost.

    Without --model the weights are random: 101 MB, written once into the cache directory. Their text is
    noise; draw calls, textures and speed are those of the real model.
    """
    if model is None and tokenizer is not None:
        raise InputError("--tokenizer belongs to --model; add it, or leave --tokenizer out")
    if model is None:
        folder = demo_folder()
        click.echo(f"No model given: using random weights of Gab's shape in {folder}.", err=True)
        click.echo("The text below is NOISE. For words, give a trained model: --model model.gab", err=True)
        checkpoint, vocabulary = write_demo(folder)
        model, tokenizer = str(checkpoint), str(vocabulary)
    with loaded(model, tokenizer=tokenizer, **options) as opened:
        stream = opened.stream(prompt, max_tokens=max_tokens, seed=1)
        click.echo(prompt, nl=False)
        show(stream)
        click.echo(closing_line(opened, stream.stats))

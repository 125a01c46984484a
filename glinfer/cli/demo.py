"""``glinfer demo``: generate text at once, or chat, with or without a model of one's own."""

from __future__ import annotations

import sys
from typing import Any

import click

from glinfer.cli.chat import talk
from glinfer.cli.common import device_options, loaded, model_options, model_title
from glinfer.cli.generate import closing_line, show
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_folder, write_demo
from glinfer.errors import InputError
from glinfer.terminal import emit

_PROMPT, _MAX_TOKENS = "ROMEO:", 40
_QUESTION, _MAX_REPLY = "What is the capital of France?", 200
_BUNDLED = "shakespeare"
_TEMPERATURE, _SEED = 0.8, 1


@click.command()
@click.option("--model", type=click.Path(), help="A checkpoint or a bundled model. Default: shakespeare.")
@click.option("--tokenizer", type=click.Path(), help="Its .bpe file. Default: the one beside the model, if it fits.")
@click.option("--random", is_flag=True, help="Instead of a model: random weights of Gab's full shape.")
@click.option(
    "--prompt", help=f"The text to continue, or what a model that chats is told. Default: {_PROMPT!r}, or a question."
)
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help=f"How many tokens at most. Default: {_MAX_TOKENS}, of a reply {_MAX_REPLY}.",
)
@model_options
@device_options
def demo(
    model: str | None,
    tokenizer: str | None,
    random: bool,
    prompt: str | None,
    max_tokens: int | None,
    **options: Any,
) -> None:
    """Stream text from a model and say what it cost.

    A model that can chat replies to the prompt; at a terminal, and without --prompt, it then chats on, as 'glinfer
    chat' does. Other models continue the prompt.

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
        emit(f"Random weights of Gab's shape, kept in {folder}: the text below is NOISE.", err=True)
        checkpoint, vocabulary = write_demo(folder)
        model, tokenizer = str(checkpoint), str(vocabulary)
    path = _BUNDLED if model is None else model
    with loaded(path, tokenizer=tokenizer, **options) as opened:
        if not random and _chats(opened):
            _chat(opened, path, prompt, max_tokens or _MAX_REPLY)
        else:
            _continue(opened, _PROMPT if prompt is None else prompt, max_tokens or _MAX_TOKENS)


def _chats(model: Model) -> bool:
    try:
        model.chat_form()
    except InputError:
        return False
    return True


def _continue(model: Model, prompt: str, max_tokens: int) -> None:
    stream = model.stream(prompt, max_tokens=max_tokens, temperature=_TEMPERATURE, seed=_SEED)
    emit(prompt, nl=False)
    show(stream)
    emit(closing_line(model, stream.stats))


def _chat(model: Model, path: str, prompt: str | None, max_tokens: int) -> None:
    """Reply to one message; without one to a question, and at a terminal to all that follow."""
    session = model.chat_session()
    message = _QUESTION if prompt is None else prompt
    stream = session.stream(message, max_tokens=max_tokens, seed=_SEED)
    emit(f"> {message}")
    show(stream)
    emit(closing_line(model, stream.stats))
    if prompt is None and sys.stdin.isatty() and sys.stdout.isatty():
        emit()
        talk(model, model_title(path), session, model.sampling, max_tokens, {})

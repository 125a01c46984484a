"""``glinfer demo``: generate a sample text or chat, with the bundled model or another one."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.chat import talk
from glinfer.cli.common import loaded, model_title, one_of
from glinfer.cli.generate import closing_line, print_stream
from glinfer.engine.chat import ChatSession
from glinfer.engine.model import Model
from glinfer.engine.random_model import demo_folder, write_demo
from glinfer.errors import InputError
from glinfer.terminal import emit

_PROMPT, _MAX_TOKENS = "ROMEO:", 40
_QUESTION, _MAX_REPLY = "What is the capital of France?", 200
_BUNDLED = "shakespeare"
_TEMPERATURE, _SEED = 0.8, 1


@click.command()
@click.option("--model", type=opt.FILE, help="Checkpoint or bundled model. Default: shakespeare.")
@opt.tokenizer_option
@click.option("--random", is_flag=True, help="Use random weights of Gab's full shape instead of a model.")
@click.option("--prompt", help=f"Text to continue, or message to a chat model. Default: {_PROMPT!r}, or a question.")
@click.option(
    "--max-tokens",
    type=click.IntRange(min=1),
    help=f"Maximum number of tokens to generate. Default: {_MAX_TOKENS}; for a reply {_MAX_REPLY}.",
)
@opt.model_options
@opt.device_options
def demo(
    model: str | None, tokenizer: str | None, random: bool, prompt: str | None, max_tokens: int | None, **options: Any
) -> None:
    """Generate a sample text and report draw calls and speed.

    A chat model replies to the prompt; on a terminal without --prompt, the chat then continues as in 'glinfer chat'.
    Other models continue the prompt.

    The bundled model has Gab's architecture at half its width. --random uses Gab's full shape with random weights
    (101 MB, saved in the cache folder). Draw calls, textures and speed then match the real model; the text is noise.
    """
    one_of({"--random": random or None, "--model": model})
    if model is None and tokenizer is not None:
        raise InputError("--tokenizer needs --model; give both or neither")
    if random:
        folder = demo_folder()
        emit(f"Random weights of Gab's shape, stored in {folder}: the text below is NOISE.", err=True)
        checkpoint, vocabulary = write_demo(folder)
        model, tokenizer = str(checkpoint), str(vocabulary)
    path = _BUNDLED if model is None else model
    with loaded(path, tokenizer=tokenizer, **options) as opened:
        session = None
        if not random:
            with contextlib.suppress(InputError):  # the model cannot chat
                session = opened.chat_session()
        if session is None:
            _continue(opened, _PROMPT if prompt is None else prompt, max_tokens or _MAX_TOKENS)
        else:
            _chat(opened, session, model_title(path), prompt, max_tokens or _MAX_REPLY)


def _continue(model: Model, prompt: str, max_tokens: int) -> None:
    stream = model.stream(prompt, max_tokens=max_tokens, temperature=_TEMPERATURE, seed=_SEED)
    emit(prompt, nl=False)
    print_stream(stream)
    emit(closing_line(model, stream.stats))


def _chat(model: Model, session: ChatSession, name: str, prompt: str | None, max_tokens: int) -> None:
    """Reply to the prompt or to a sample question; without a prompt, chat on a terminal."""
    message = _QUESTION if prompt is None else prompt
    stream = session.stream(message, max_tokens=max_tokens, seed=_SEED)
    emit(f"> {message}")
    print_stream(stream)
    emit(closing_line(model, stream.stats))
    if prompt is None and sys.stdin.isatty() and sys.stdout.isatty():
        emit()
        talk(model, name, session, model.sampling, max_tokens, {})

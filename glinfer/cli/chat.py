"""``glinfer chat``: a conversation in the terminal."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from typing import Any

import click

from glinfer.cli.common import device_options, loaded, model_options, strict_option, tokenizer_option
from glinfer.cli.generate import closing_line, sampling_options, take_sampling
from glinfer.engine.defaults import merged
from glinfer.engine.model import Model
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import InputError
from glinfer.text.assembler import TextAssembler
from glinfer.text.chat import ChatForm, Conversation, ReplySplitter, find_chat

_HELP = """\
  /help              this list
  /reset             forget the conversation
  /temperature X     0 takes the likeliest token each time
  /top-k N           only the N likeliest tokens; 0 for all
  /top-p X           only the likeliest tokens up to this probability
  /seed N            the same seed gives the same reply; 'none' for a new one each time
  /think             turn thinking before the answer on or off
  /quit              leave (so does Ctrl-D); Ctrl-C stops a reply"""


@click.command()
@click.argument("model", type=click.Path())
@tokenizer_option
@sampling_options
@click.option(
    "--system", default="", help="What the conversation begins with, for models whose chat template takes it."
)
@click.option("--think", is_flag=True, help="Let the model think before it answers.")
@model_options
@device_options
@strict_option
def chat(model: str, think: bool, system: str, **options: Any) -> None:
    """Talk with MODEL, in Gab's chat form or that of its own chat template, until /quit or Ctrl-D.

    When the context is full the oldest turns are dropped, and it says so. Type /help for the commands.
    """
    max_tokens, given = options.pop("max_tokens"), take_sampling(options)
    with loaded(model, **options) as opened:
        form = find_chat(model, opened.require_tokenizer(), opened.config, system=system)
        _Chat(opened, form, merged(opened.sampling, given), max_tokens, think).run()


class _Chat:
    def __init__(self, model: Model, form: ChatForm, sampling: SamplingOptions, max_tokens: int, think: bool) -> None:
        self.model, self.sampling, self.think = model, sampling, False
        context = model.config.max_position_embeddings
        self.max_tokens = min(max_tokens, max(1, context // 2))
        self.tokenizer = model.require_tokenizer()
        self.template = form
        self.conversation = Conversation(self.template, context)
        if think:
            self.toggle_think("")
        self.interactive = sys.stdin.isatty()
        self.commands: dict[str, Callable[[str], str]] = {
            "/help": lambda _: _HELP,
            "/reset": self.reset,
            "/temperature": lambda value: self.set("temperature", value, float),
            "/top-k": lambda value: self.set("top_k", value, int),
            "/top-p": lambda value: self.set("top_p", value, float),
            "/seed": self.set_seed,
            "/think": self.toggle_think,
        }

    def run(self) -> None:
        if self.interactive:
            import readline  # noqa: F401  (line editing and history for input())

            click.echo("Type a message, /help for commands, /quit to leave.")
        while (line := self.ask()) is not None:
            name, _, value = line.strip().partition(" ")
            if name == "/quit":
                return
            if not name:
                continue
            try:
                if name.startswith("/"):
                    self.command(name, value.strip())
                else:
                    self.reply(line)
            except InputError as error:
                click.echo(f"  {error}")

    def ask(self) -> str | None:
        try:
            return input("\n> " if self.interactive else "")
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise InputError(f"standard input is not UTF-8 (byte {error.start}); expected text") from None

    def command(self, name: str, value: str) -> None:
        if name not in self.commands:
            raise InputError(f"there is no command {name}; /help lists them")
        click.echo(self.commands[name](value))

    def reset(self, _: str) -> str:
        self.conversation.reset()
        return "  the conversation is forgotten"

    def set(self, field: str, value: str, kind: Callable[[str], Any]) -> str:
        try:
            number = kind(value)
        except ValueError:
            expected = "a whole number" if kind is int else "a number"
            raise InputError(f"{field} is {value!r}; expected {expected}") from None
        self.sampling = dataclasses.replace(self.sampling, **{field: number})
        return f"  {field} is {number}"

    def set_seed(self, value: str) -> str:
        if value.lower() == "none":
            self.sampling = dataclasses.replace(self.sampling, seed=None)
            return "  every reply draws a new seed"
        return self.set("seed", value, int)

    def toggle_think(self, _: str) -> str:
        if not self.think and self.template.think is None:
            raise InputError(self.template.no_think)
        self.think = not self.think
        return f"  thinking is {'on' if self.think else 'off'}"

    def reply(self, message: str) -> None:
        prompt = self.conversation.prompt(message, think=self.think, reserve=self.max_tokens)
        if prompt.dropped_turns:
            count = prompt.dropped_turns
            turns = "oldest turn was" if count == 1 else f"{count} oldest turns were"
            click.echo(f"  (the context is full: the {turns} left out)")
        stream = self.model.stream(
            prompt.ids,
            max_tokens=self.max_tokens,
            stop_ids=self.template.stop_ids,
            **dataclasses.asdict(self.sampling),
        )
        printer = _ReplyPrinter(ReplySplitter(self.template, think=self.think))
        try:
            for token in stream:
                printer.push(token, self.tokenizer.token_bytes(token))
        except KeyboardInterrupt:
            stream.close()
        printer.finish()
        self.conversation.add_reply(stream.ids)
        if self.interactive:
            click.secho(f"  {closing_line(self.model, stream.stats)}", dim=True)


class _ReplyPrinter:
    """Prints thinking dimmed and the answer plain, each as whole characters."""

    def __init__(self, splitter: ReplySplitter) -> None:
        self.splitter = splitter
        self.kind: str | None = None
        self.assembler = TextAssembler()

    def push(self, token: int, data: bytes) -> None:
        kind = self.splitter.push(token)
        if kind is None:
            return
        if kind != self.kind:
            if self.kind is not None:
                self.finish()
            self.kind, self.assembler = kind, TextAssembler()
        self.show(self.assembler.push(data))

    def show(self, text: str) -> None:
        click.secho(text, nl=False, dim=True if self.kind == "thinking" else None)

    def finish(self) -> None:
        self.show(self.assembler.finish())
        click.echo()

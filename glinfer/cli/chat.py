"""``glinfer chat``: a conversation in the terminal."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import loaded, model_title, opened_drafts
from glinfer.cli.generate import closing_line
from glinfer.engine.chat import MAX_TOKENS, ChatSession, ChatStream
from glinfer.engine.defaults import merged
from glinfer.engine.ids import check_count
from glinfer.engine.model import Model
from glinfer.engine.sampler import SamplingOptions
from glinfer.errors import FormatError, InputError, counted, nearest
from glinfer.formats import replacing
from glinfer.formats.files import decode_text, shown
from glinfer.formats.json_files import read_json
from glinfer.limits import MAX_CHAT_BYTES
from glinfer.terminal import emit

FORMAT = "glinfer-chat"
_BLOCK = '"""'
_FIELDS = ("temperature", "top_k", "top_p", "min_p", "seed")
_LEAVING = {"/exit", "/bye", "/q"}  # how other programs call /quit
_HELP = """\
  /help              show this list
  /system TEXT       set the system prompt; 'none' removes it, no TEXT shows it
  /regen             regenerate the last reply
  /continue          continue the last reply
  /reset             clear the conversation
  /save FILE         save the conversation to a JSON file
  /load FILE         load a conversation from a JSON file
  /max-tokens N      limit the length of a reply
  /temperature X     set the sampling temperature; 0 is greedy decoding
  /top-k N           sample from the N likeliest tokens; 0 for all
  /top-p X           sample from the likeliest tokens up to this probability
  /min-p X           minimum probability relative to the best token; 0 for all
  /seed N            same seed, same reply; 'none' uses a new seed each time
  /think             turn thinking before the answer on or off
  /image FILE        add an image to the next message
  /quit              leave (or Ctrl-D); Ctrl-C stops a reply or clears the line
  For several lines, end each but the last with a backslash, or enclose them in \"\"\"."""


@click.command()
@click.argument("model", type=opt.FILE, required=False)
@opt.model_option
@opt.tokenizer_option
@opt.image_options
@opt.sampling_options(MAX_TOKENS)
@click.option("--system", default="", help="System prompt, if the model's chat template supports one.")
@click.option("--think", is_flag=True, help="Enable thinking before the answer.")
@click.option(
    "--template-arg",
    "template_args",
    multiple=True,
    metavar="NAME=VALUE",
    help="Argument for the chat template, such as enable_thinking=false. VALUE is JSON or text. Repeatable.",
)
@opt.structure_options
@opt.draft_options
@opt.loading_options
def chat(
    model: str | None, named_model: str | None, think: bool, system: str, images: tuple[str, ...], **options: Any
) -> None:
    """Chat with MODEL in the terminal, until /quit or Ctrl-D.

    Uses the model's chat template, or Gab's chat format. Type /help for the commands. When the context is full, the
    oldest turns are dropped with a notice. Messages can also come from a pipe; if one is refused, the error is printed
    on standard error and the exit status is 2.

    \b
    glinfer chat model.gguf --system "Answer in one sentence."
    echo "Hello!" | glinfer chat model.gguf --temperature 0
    """
    path, _ = opt.chosen_model(named_model, model)
    max_tokens, given, drafts = options.pop("max_tokens"), opt.take_sampling(options), opt.take_drafts(options)
    structured, arguments = opt.take_structured(options), dict(map(_argument, options.pop("template_args")))
    opt.one_adapter(options)
    with loaded(path, **options) as opened, opened_drafts(opened, drafts) as drafting:
        session = opened.chat_session(system=system, think=think, template_kwargs=arguments)
        name = model_title(path)
        for each in images:
            opened.read_image(each)  # refuses it now
        further = {**drafting, **structured}
        refused = talk(opened, name, session, merged(opened.sampling, given), max_tokens, further, images)
    if refused:
        raise click.exceptions.Exit(2)


def talk(
    model: Model,
    name: str,
    session: ChatSession,
    sampling: SamplingOptions,
    max_tokens: int,
    further: dict[str, Any],
    images: Sequence[str] = (),
) -> bool:
    """Run a conversation on a terminal or a pipe; returns whether a message from a pipe was refused."""
    return _Chat(model, name, session, sampling, max_tokens, further, list(images)).run()


@dataclass
class _Chat:
    model: Model
    name: str
    session: ChatSession
    sampling: SamplingOptions
    max_tokens: int
    further: dict[str, Any]
    images: list[str]  # for the next message
    tries: int = 0  # regenerated replies since the last message

    def __post_init__(self) -> None:
        self.interactive = sys.stdin.isatty()
        self.commands: dict[str, Callable[[str], str | None]] = {
            "/help": lambda _: _HELP,
            "/system": self.set_system,
            "/regen": self.regenerate,
            "/continue": lambda _: self.show(self.session.continue_reply(**self.options)),
            "/reset": self.reset,
            "/save": self.save,
            "/load": self.load,
            "/max-tokens": self.set_max_tokens,
            **{f"/{name.replace('_', '-')}": partial(self.set, name) for name in _FIELDS},
            "/think": self.toggle_think,
            "/image": self.add_image,
        }

    def run(self) -> bool:
        refused = False
        if self.interactive:
            import readline  # noqa: F401  (line editing and history for input())

            context = self.model.config.max_position_embeddings
            emit(
                f"{self.name} · {self.model.config.model_type} · context {context:,} tokens · "
                f"{self.model.device.description}\nType a message, /help for commands, /quit to leave."
            )
        for message in self.messages():
            name, _, value = message.strip().partition(" ")
            if name == "/quit":
                break
            if not name:
                continue
            try:
                if name.startswith("/") and "\n" not in message:
                    self.command(name, value.strip())
                else:
                    self.tries = 0
                    given = opt.user_message(self.images, message)["content"] if self.images else message
                    stream = self.session.stream(given, **self.options)
                    self.images = []
                    self.show(stream)
            except InputError as error:
                emit(f"  {error}" if self.interactive else f"glinfer: {error}", err=True)
                refused |= not self.interactive
        return refused

    def messages(self) -> Iterator[str]:
        """Yield messages and commands until the end of input; the lines of one message are joined."""
        lines: list[str] = []
        block = interrupted = False
        while True:
            try:
                line = self.ask("... " if lines or block else "\n> ")
            except KeyboardInterrupt:
                if not self.interactive or (interrupted and not lines and not block):
                    raise
                interrupted, block = True, False
                lines.clear()
                emit("\n  (to leave, press Ctrl-C again or Ctrl-D, or type /quit)", nl=False)
                continue
            interrupted = False
            if line is None:
                if lines or block:
                    yield "\n".join(lines)
                return
            if not lines and not block and line.lstrip().startswith(_BLOCK):
                block, line = True, line.lstrip()[len(_BLOCK) :]
                if not line:
                    continue
            ended = line.rstrip().endswith(_BLOCK) if block else not line.endswith("\\")
            if ended:
                lines.append(line.rstrip()[: -len(_BLOCK)] if block else line)
                message = "\n".join(lines)
                lines, block = [], False
                yield message
            else:
                lines.append(line if block else line[:-1])

    def ask(self, prompt: str) -> str | None:
        if not self.interactive:
            line = sys.stdin.buffer.readline()
            return decode_text(line, "standard input").removesuffix("\n") if line else None
        try:
            return input(prompt)
        except EOFError:
            return None
        except UnicodeDecodeError as error:
            raise InputError(f"standard input is not UTF-8 (byte {error.start}); expected text") from None

    def command(self, name: str, value: str) -> None:
        if name not in self.commands:
            near = "/quit" if name in _LEAVING else nearest(name, [*self.commands, "/quit"])
            meant = f"did you mean {near}? " if near else ""
            raise InputError(f"unknown command {name}; {meant}/help lists all commands")
        if (answer := self.commands[name](value)) is not None:
            emit(answer)

    def reset(self, _: str) -> str:
        self.session.reset()
        return "  conversation cleared"

    def set_system(self, value: str) -> str:
        if not value:
            return f"  the system prompt is {self.session.system!r}" if self.session.system else "  no system prompt"
        self.session.set_system("" if value.lower() == "none" else value)
        return "  system prompt removed" if not self.session.system else "  system prompt set"

    def set_max_tokens(self, value: str) -> str:
        self.max_tokens = check_count("max_tokens", _number("max_tokens", value, int))
        return f"  max_tokens is {self.max_tokens}"

    def set(self, field: str, value: str) -> str:
        drawn = field == "seed" and value.lower() == "none"
        number: Any = None if drawn else _number(field, value, int if field == "seed" else opt.SAMPLING[field][0])
        self.sampling = dataclasses.replace(self.sampling, **{field: number})
        return "  every reply uses a new seed" if drawn else f"  {field} is {number}"

    def add_image(self, value: str) -> str:
        file = _file_of("/image", value)
        self.model.read_image(file)  # refuses it now
        self.images.append(str(file))
        return f"  the next message has {counted(len(self.images), 'image')}"

    def toggle_think(self, _: str) -> str:
        self.session.set_think(not self.session.think)
        return f"  thinking is {'on' if self.session.think else 'off'}"

    def save(self, value: str) -> str:
        file = _file_of("/save", value)
        if os.path.lexists(file):
            _read_chat(file)  # replace only saved conversations
        messages = self.session.messages
        document = {"format": FORMAT, "version": 1, "model": self.name, "messages": messages}
        try:
            with replacing(file) as new:
                new.write_text(json.dumps(document, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        except FormatError as error:
            raise InputError(str(error)) from None
        return f"  saved {counted(len(messages), 'message')} to {shown(file)}"

    def load(self, value: str) -> str:
        file = _file_of("/load", value)
        messages = _read_chat(file)
        try:
            self.session.restore(messages)
        except InputError as error:
            raise InputError(f"{shown(file)}: {error}") from None
        return f"  loaded {counted(len(messages), 'message')} from {shown(file)}"

    @property
    def options(self) -> dict[str, Any]:
        given = {"max_tokens": self.max_tokens, **dataclasses.asdict(self.sampling), **self.further}
        if self.sampling.seed is not None:
            given["seed"] = self.sampling.seed + self.tries  # the same seed would give the same reply again
        return given

    def regenerate(self, _: str) -> None:
        self.tries += 1
        self.show(self.session.regenerate(**self.options))

    def show(self, stream: ChatStream) -> None:
        """Stream a reply: thoughts dimmed and the answer plain, on separate lines."""
        if count := stream.dropped_turns:
            emit(f"  (context full: dropped the {'oldest turn' if count == 1 else f'{count} oldest turns'})")
        kind: str | None = None
        while True:
            try:
                part = stream.next_part()
            except KeyboardInterrupt:
                stream.close()
                continue
            except InputError:
                if kind is not None:
                    emit()
                raise
            if part is None:
                break
            kind = self.show_part(part.kind, part.text, kind)
        emit()
        if self.interactive:
            self.say_end(stream)

    def show_part(self, kind: str, text: str, before: str | None) -> str:
        if before not in (None, kind):
            emit()
        emit(text, nl=False, dim=True if kind == "thinking" else None)
        return kind

    def say_end(self, stream: ChatStream) -> None:
        """Print why a reply stopped early, and its cost."""
        context = self.model.config.max_position_embeddings
        reasons = {
            "length": f"stopped at {counted(self.max_tokens, 'token')}; /max-tokens changes the limit",
            "context": f"stopped: the context of {context} tokens is full; /reset clears it",
            "closed": "stopped",
        }
        if (reason := reasons.get(stream.stats.finish_reason or "")) is not None:
            emit(f"  [{reason}]", fg="yellow")
        emit(f"  {closing_line(self.model, stream.stats, renderer=False)}", dim=True)


def _argument(text: str) -> tuple[str, Any]:
    name, given, value = text.partition("=")
    if not name or not given:
        raise InputError(f"--template-arg is {text!r}; expected NAME=VALUE, such as enable_thinking=false")
    try:
        return name, json.loads(value)
    except (ValueError, RecursionError):
        return name, value


def _number(field: str, value: str, kind: Callable[[str], Any]) -> Any:
    try:
        return kind(value)
    except ValueError:
        expected = "an integer" if kind is int else "a number"
        raise InputError(f"{field} is {value!r}; expected {expected}") from None


def _file_of(command: str, value: str) -> Path:
    if not value:
        raise InputError(f"{command} needs a file name, such as {command} talk.json")
    return Path(value).expanduser()


def _read_chat(file: Path) -> list[Any]:
    """Read the messages of a saved conversation; InputError if it cannot be read, or is another file."""
    try:
        found = read_json(file, MAX_CHAT_BYTES)
    except FormatError as error:
        raise InputError(str(error)) from None
    messages = found.get("messages")
    if found.get("format") != FORMAT or not isinstance(messages, list):
        raise InputError(f"{shown(file)}: this is not a conversation saved by /save; give another file")
    return messages

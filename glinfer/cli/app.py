"""The command group and its error handling: one line on stderr, exit status 2."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import re
import signal
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import click
from click.shell_completion import CompletionItem

from glinfer import __version__
from glinfer.errors import GlinferError, GlinferWarning, nearest
from glinfer.terminal import PrintableStream, emit

_EXIT_BAD_INPUT = 2
_EXIT_INTERRUPTED = 130
_NEW_OBJECTS = 200_000
"""New objects between two garbage collections. The imports and a vocabulary of 49,000 tokens make 110,000."""


class Commands(click.Group):
    """A group of commands in sections; a command is imported when it is first used."""

    def __init__(
        self,
        *args: Any,
        package: str,
        commands_by_section: Mapping[str, Mapping[str, tuple[str, str]]],
        program: str,
        variables: Mapping[str, str] | None = None,
        **options: Any,
    ):
        """Make the group.

        ``commands_by_section`` maps sections of the help to commands, each with ``module:attribute`` in ``package`` and
        a summary. ``program`` is the name that users type; ``variables`` are environment variables and their summaries.
        Further arguments go to :class:`click.Group`.
        """
        super().__init__(*args, **options)
        self.program, self._package, self._variables = program, package, variables
        sections = commands_by_section.items()
        self.sections = {
            section: {name: text for name, (_, text) in commands.items()} for section, commands in sections
        }
        self._targets = {name: target for _, commands in sections for name, (target, _) in commands.items()}
        self.arguments: tuple[str, ...] = ()
        self.chosen = ""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of all commands, without importing any."""
        return sorted({*self._targets, *super().list_commands(ctx)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command on first use."""
        if cmd_name in self._targets and cmd_name not in self.commands:
            module, _, attribute = self._targets[cmd_name].partition(":")
            self.add_command(getattr(import_module(f"{self._package}.{module}"), attribute), cmd_name)
        return super().get_command(ctx, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the summaries of all commands by section, without importing any command."""
        width = max(map(len, self._targets))
        for section, commands in self.sections.items():
            with formatter.section(section):
                formatter.write_dl([(f"{name:{width}}", summary) for name, summary in commands.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the environment variables at the end of the help."""
        if self._variables:
            with formatter.section("Environment variables"):
                formatter.write_dl(list(self._variables.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command or an option, without importing any command."""
        commands = {name: summary for section in self.sections.values() for name, summary in section.items()}
        found = [CompletionItem(name, help=text) for name, text in commands.items() if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command; one that does not exist gets the nearest name as a suggestion."""
        self.arguments = tuple(args[1:])
        self.chosen = name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.UsageError(f"No such command '{name}'{_nearest(name, self.list_commands(ctx))}", ctx)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. A closed pipe is caught here; click would exit with status 1."""
        try:
            value = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            # The reader of the pipe has gone (| head): exit without a message.
            _drop_output()
            return None
        return value


def _drop_output() -> None:
    """Discard buffered standard output, which Python would otherwise fail to flush at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


_COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Run a model": {
        "chat": ("chat:chat", "Chat with a model in the terminal."),
        "generate": ("generate:generate", "Generate text from a prompt or a file of prompts."),
        "embed": ("embed:embed", "Embed the texts in a file."),
        "demo": ("demo:demo", "Generate a sample text and report its cost."),
        "models": ("files.models:models", "List the models on this machine."),
        "pull": ("files.models:pull_command", "Download a model from the Hugging Face Hub."),
        "remove": ("files.models:remove_command", "Delete a downloaded model."),
        "run-batch": ("run_batch:run_batch_command", "Run a file of requests in OpenAI's batch format."),
        "serve": ("serve:serve_command", "Serve models over HTTP with OpenAI's API."),
        "convert": ("files.convert:convert", "Convert a model to .gab, .safetensors or .gguf."),
        "export-web": ("files.web:export_command", "Export a model as a website that runs it."),
        "serve-web": ("files.web:serve_command", "Serve an exported website on this machine."),
    },
    "Inspect": {
        "info": ("info:info", "Show the renderer and a model's requirements."),
        "draws": ("draws:draws", "Count the draw calls of a token, by pass."),
        "tour": ("tour:tour", "Walk through the draws of a token in the browser."),
        "look": ("look:look", "Plot attention, hidden states and weights."),
        "diff": ("diff:diff_command", "Compare two models, plans or renderers."),
    },
    "Check": {
        "verify": ("verify:verify", "Check textures, draws and tokens against float64."),
        "eval": ("evaluate:eval_command", "Measure how well a model predicts a text."),
    },
    "Measure": {
        "bench": ("bench:bench_command", "Benchmark prefill and decoding."),
        "profile": ("profile:profile_command", "Time every draw and count the bytes it moves."),
        "tune": ("tune:tune_command", "Find the fastest kernels for this renderer."),
    },
    "Command line": {
        "help": ("help:help_command", "Show this list or the help of a command."),
        "completion": ("help:completion", "Print a completion script for bash, zsh or fish."),
    },
}
_VARIABLES: Mapping[str, str] = {
    "GLINFER_DEVICE": "Default for --device.",
    "GLINFER_API": "Default for --api; GLINFER_GL is the older name.",
    "GLINFER_MEMORY": "Memory limit in GB. Default: detected.",
    "GLINFER_CACHE": "Cache folder; if empty, nothing is saved for later runs.",
    "GLINFER_KEEP_AWAKE": "1 keeps idle cores awake, for software renderers.",
    "GLINFER_API_KEY": "API keys for 'serve', comma-separated.",
    "XDG_CACHE_HOME": "Parent of the default GLINFER_CACHE, else ~/.cache.",
    "HF_HOME, HF_HUB_CACHE": "Location of the Hugging Face cache.",
    "HF_ENDPOINT, HF_TOKEN": "Hub and access token; HF_HUB_OFFLINE=1 is offline.",
    "HTTPS_PROXY, ALL_PROXY": "Proxy for the hub.",
    "CUDA_VISIBLE_DEVICES": "GPU of a process, for 'run-batch' on a cluster.",
    "LP_NUM_THREADS": "Threads of Mesa's software renderer.",
    "NO_COLOR": "Any value disables colours.",
}
CONTEXT_SETTINGS = {"help_option_names": ["-h", "--help"]}


@click.group(
    cls=Commands,
    commands_by_section=_COMMANDS,
    package="glinfer.cli",
    variables=_VARIABLES,
    program="glinfer",
    invoke_without_command=True,
    context_settings=CONTEXT_SETTINGS,
)
@click.version_option(__version__, "-V", "--version", prog_name="glinfer")
@click.pass_context
def cli(context: click.Context) -> None:
    """Run transformer language models on WebGL2-class graphics, without a window.

    Start with 'glinfer info' to see this machine's renderer, then try
    'glinfer generate MODEL "some text"'. Every command has --help.
    """
    if context.invoked_subcommand is None:
        emit(context.get_help())


def main(arguments: Sequence[str] | None = None, group: Commands = cli) -> NoReturn:
    """Run the command line and exit: 0 success, 1 a check failed, 2 bad input, 130 interrupted."""
    gc.set_threshold(_NEW_OBJECTS)
    atexit.register(gc.freeze)  # the process ends, so a last search for garbage among all objects frees nothing
    _mend_streams()
    _say_warnings_in_one_line(group.program)
    status = run(arguments, group)
    _leave_quietly()
    sys.exit(status)


def _leave_quietly() -> None:
    """From here on, let Ctrl-C end the process at once; Python would print a traceback while it shuts down."""
    with contextlib.suppress(ValueError):  # not in the main thread
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def _mend_streams() -> None:
    """Replace closed streams (``<&-``); escape characters that the output's encoding lacks or stderr must not show."""
    if sys.stdin is None:
        sys.stdin = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115 (refuses all text)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is None:  # else the next file gets descriptor 2, and messages of libraries
        sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = PrintableStream(sys.stderr)


def _say_warnings_in_one_line(program: str) -> None:
    """Print glinfer's warnings as one line, without the source location."""
    others = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *location: Any, **further: Any) -> None:
        if issubclass(category, GlinferWarning):
            emit(f"{program}: warning: {' '.join(str(message).split())}", err=True)
        else:
            others(message, category, *location, **further)

    warnings.showwarning = show


def _nearest(name: str, names: Iterable[str]) -> str:
    """Suggest the nearest name for one that does not exist; empty if none is near."""
    found = nearest(name, names)
    return f"; did you mean {found}?" if found else ""


def _no_such_option(error: click.NoSuchOption) -> str:
    """The message for an unknown option: an argument of that name, else the nearest option."""
    name, context = error.option_name, error.ctx
    if context is None:
        return error.format_message()
    params = context.command.params
    argument = next((each for each in params if isinstance(each, click.Argument) and f"--{each.name}" == name), None)
    if argument is not None:
        usage = " ".join(context.command.collect_usage_pieces(context)[1:])
        return f"No such option: {name}; it is an argument: {context.command_path} {usage}"
    names = [option for each in params if isinstance(each, click.Option) for option in each.opts if len(option) > 2]
    hint = _nearest(name, [*names, *context.help_option_names]) or f" (see '{context.command_path} --help')"
    return f"No such option: {name}{hint}"


def _as_typed(message: str, command: click.Command | None) -> str:
    """Name the option that users type in a message that begins with a parameter of a command."""
    name, verb, rest = message.partition(" is ")
    typed = f"--{name.replace('_', '-')}"
    known = command is not None and any(typed in each.opts for each in command.params)
    return f"{typed}{verb}{rest}" if known else message


def run(arguments: Sequence[str] | None = None, group: Commands = cli) -> int:
    """Run the command line of a group and return its exit status."""

    def complain(message: str) -> int:
        emit(f"{group.program}: {' '.join(message.split())}", err=True)
        return _EXIT_BAD_INPUT

    try:
        status = group.main(
            args=None if arguments is None else list(arguments), prog_name=group.program, standalone_mode=False
        )
        return int(status or 0)
    except GlinferError as error:
        return complain(_as_typed(str(error), group.commands.get(group.chosen)))
    except click.NoSuchOption as error:
        return complain(_no_such_option(error))
    except click.UsageError as error:
        # Errors in splitting a command's options have no context.
        path = error.ctx.command_path if error.ctx is not None else f"{group.program} {group.chosen}".rstrip()
        message = re.sub(r"(is not a valid \w+) range$", r"\1", error.format_message().rstrip("."))
        return complain(f"{message} (see '{path} --help')")
    except click.ClickException as error:
        return complain(error.format_message())
    except OSError as error:
        _drop_output()
        if isinstance(error, io.UnsupportedOperation):  # of :func:`_mend_streams`
            return complain("cannot write the output: standard output is closed; leave it open, or use > /dev/null")
        where = f"{error.filename}: " if error.filename else "cannot write the output: "
        return complain(f"{where}{error.strerror or error}; check the free space and the permissions")
    except MemoryError:
        return complain("out of memory: the model and its textures need more than this machine has free")
    except (KeyboardInterrupt, click.Abort):
        return _EXIT_INTERRUPTED
    except RuntimeError as error:
        if "can't start new thread" not in str(error):
            raise
        return complain(f"{error}; end other processes, or raise the limits of threads and memory (ulimit -u, -v)")

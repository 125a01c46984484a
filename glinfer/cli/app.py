"""The command group, and what every command does with errors: one line on stderr, exit status 2."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

from glinfer import __version__
from glinfer.cli.bench import bench_command
from glinfer.cli.chat import chat
from glinfer.cli.convert import convert
from glinfer.cli.demo import demo
from glinfer.cli.draws import draws
from glinfer.cli.generate import generate
from glinfer.cli.info import info
from glinfer.cli.verify import verify
from glinfer.errors import GlinferError

_EXIT_BAD_INPUT = 2
_EXIT_INTERRUPTED = 130


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="glinfer")
def cli() -> None:
    """Run transformer language models on WebGL2-class graphics, without a window.

    Start with 'glinfer info' to see what this machine renders with, then
    'glinfer generate MODEL "some text"'. Every command explains itself with --help.
    """


for command in (generate, chat, draws, verify, info, convert, bench_command, demo):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 fine, 1 a check failed, 2 bad input, 130 interrupted."""
    sys.exit(run(arguments))


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit status."""
    try:
        status = cli.main(
            args=None if arguments is None else list(arguments), prog_name="glinfer", standalone_mode=False
        )
        sys.stdout.flush()
        return int(status or 0)
    except GlinferError as error:
        return _complain(str(error))
    except click.NoSuchOption as error:
        return _complain(error.format_message())
    except click.UsageError as error:
        path = error.ctx.command_path if error.ctx is not None else "glinfer"
        return _complain(f"{error.format_message()} (see '{path} --help')")
    except click.ClickException as error:
        return _complain(error.format_message())
    except MemoryError:
        return _complain("out of memory: the model and its textures need more than this machine has free")
    except (KeyboardInterrupt, click.Abort):
        click.echo("", err=True)
        return _EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of a pipe went away (| head): nothing to say, and nobody to say it to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _complain(message: str) -> int:
    click.echo(f"glinfer: {' '.join(message.split())}", err=True)
    return _EXIT_BAD_INPUT

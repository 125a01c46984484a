"""``glinfer help`` and ``glinfer completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from glinfer.terminal import emit

_SHELLS = ("bash", "zsh", "fish")


@click.command("help")
@click.argument("command", required=False)
@click.pass_context
def help_command(context: click.Context, command: str | None) -> None:
    """Show the list of commands or the help of COMMAND."""
    root = context.find_root()
    if command is None:
        emit(root.get_help())
        return
    assert isinstance(root.command, click.Group)
    _, found, _ = root.command.resolve_command(root, [command])
    if found is None:
        raise click.UsageError(f"No such command '{command}'", root)
    emit(found.get_help(click.Context(found, root, info_name=command)))


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands, options and values.

    \b
    eval "$(glinfer completion bash)"      in ~/.bashrc; bash 4.4 or later
    eval "$(glinfer completion zsh)"       in ~/.zshrc, after compinit
    glinfer completion fish | source       in ~/.config/fish/config.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    emit(kind(context.find_root().command, {}, "glinfer", "_GLINFER_COMPLETE").source())

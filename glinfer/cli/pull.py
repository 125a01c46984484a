"""``glinfer pull`` and ``glinfer remove``: models of Hugging Face's hub, into its cache and out of it."""

from __future__ import annotations

import os
from pathlib import Path

import click

from glinfer.cli.common import context_option, json_option, megabytes, print_json, say
from glinfer.engine.loading import fetched
from glinfer.errors import GlinferError, InputError
from glinfer.formats import bundled_models, find_model
from glinfer.formats.files import shown
from glinfer.formats.installed import installed_models
from glinfer.hub import HubName, named_on_a_hub
from glinfer.hub.cache import RepositoryCache, origin_of, remove
from glinfer.hub.client import require_hub
from glinfer.hub.fetch import cached
from glinfer.hub.names import MAIN
from glinfer.terminal import emit


@click.command("pull")
@click.argument("name")
@context_option
@json_option
def pull_command(name: str, context: int | None, as_json: bool) -> None:
    """Fetch the model that NAME asks for, and say where it is; what the cache has is not fetched again.

    NAME is ORG/NAME, ORG/NAME:QUANT, ORG/NAME@REVISION, hf://… or a file's address on the hub. It is refused before
    its weights are fetched where its family or a tensor's type is unknown, or where this machine's renderer has no
    memory for it with --context. A download that was interrupted goes on where it ended.

    \b
    glinfer pull Qwen/Qwen3-0.6B-GGUF:Q8_0
    glinfer chat Qwen/Qwen3-0.6B-GGUF:Q8_0      # which fetches it too
    """
    wanted = _on_a_hub(name, "fetched")
    path = Path(fetched(name, context=context, needs_device=False, tell=say))
    origin = origin_of(path)
    size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.rglob("*")) if file.is_file())
    commit = origin.commit if origin is not None else ""
    if as_json:
        print_json({"name": str(wanted), "repo": wanted.repo, "commit": commit, "bytes": size, "path": str(path)})
        return
    emit(f"{wanted} at {commit}, {megabytes(size)}: {shown(path)}")


@click.command("remove")
@click.argument("name")
@json_option
def remove_command(name: str, as_json: bool) -> None:
    """Remove a model of the hub from the cache, which other programs share.

    ORG/NAME removes all that the cache has of a repository, ORG/NAME@REVISION one commit of it, and ORG/NAME:QUANT
    these weights alone.
    """
    wanted = _on_a_hub(name, "removed")
    require_hub(wanted)
    chosen: dict[str, list[str]] | None = None
    if wanted.quant or wanted.path:
        found = cached(wanted, RepositoryCache(wanted.repo))
        if found is not None:
            chosen = {found.repository.commit: [file.path for file in found.chosen.files]}
    gone = remove(wanted, chosen)
    if as_json:
        print_json({"name": str(wanted), "repo": gone.repo, "commits": gone.commits, "bytes": gone.bytes})
        return
    commits = f" at {', '.join(each[:12] for each in gone.commits)}" if gone.commits else ""
    emit(f"removed {wanted}{commits}: {megabytes(gone.bytes)} are free again")


def _on_a_hub(name: str, done: str) -> HubName:
    """What a name asks of the hub.

    Raises:
        InputError: it is the name of another model, or of none.
    """
    wanted = named_on_a_hub(name)
    if wanted is not None:
        return wanted
    if os.path.lexists(name):
        raise InputError(f"{shown(name)}: found a path; models of a hub are {done} by their names, such as org/name")
    try:
        path = Path(find_model(name))
    except GlinferError:
        path = Path(name)
    held = next((model for model in installed_models() if model.path == path), None)
    if any(model.path == path for model in bundled_models()):
        raise InputError(f"{shown(name)}: this model comes with glinfer, and is not {done}")
    if held is not None:
        raise InputError(f"{shown(name)}: this model is in a package; 'pip uninstall {held.project}' removes it")
    raise InputError(
        f"{shown(name)}: found no name of a model on a hub; expected org/name, org/name:QUANT@{MAIN} or hf://…"
    )

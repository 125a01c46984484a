"""``glinfer models``, ``pull`` and ``remove``: models on this machine, and those of the Hugging Face Hub."""

from __future__ import annotations

import os
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import megabytes, print_json, say, show
from glinfer.engine.loading import fetched
from glinfer.errors import GlinferError, InputError, install_command
from glinfer.formats import bundled_models, find_model
from glinfer.formats.files import shown
from glinfer.formats.installed import installed_models
from glinfer.hub import HubName, named_on_a_hub
from glinfer.hub.cache import RepositoryCache, cached_models, origin_of, remove
from glinfer.hub.client import require_hub
from glinfer.hub.fetch import cached
from glinfer.hub.names import MAIN
from glinfer.terminal import emit


@click.command()
@opt.json_option
def models(as_json: bool) -> None:
    """List bundled models, models in installed packages, and models in the Hugging Face cache.

    Every command accepts these names as MODEL.
    """
    found = [*_bundled(), *_installed(), *_cached()]
    if as_json:
        print_json(found)
        return
    rows = [
        (each["name"], megabytes(each["bytes"]), each["kind"], (each["commit"] or "")[:12], each["description"])
        for each in found
    ]
    show(("name", "size", "where", "commit", "description"), rows, numbers=("size",))
    if find_spec("huggingface_hub") is None:
        say(f"hub models are not listed: the package huggingface_hub is not installed; {install_command('hub')}")


def _entry(name: str, kind: str, description: str, size: int, path: object, **further: Any) -> dict[str, Any]:
    about = {"name": name, "description": description, "bytes": size, "kind": kind, "commit": None, "path": str(path)}
    return {**about, **further}


def _bundled() -> Iterator[dict[str, Any]]:
    for each in bundled_models():
        facts = {key: getattr(each, key) for key in ("licence", "parameters", "bits_per_byte")}
        yield _entry(each.name, "bundled", each.description, each.bytes, each.path, **facts)


def _installed() -> Iterator[dict[str, Any]]:
    found = installed_models()
    projects = [model.project for model in found]
    for model in found:
        file = model.path.name
        name = model.name if projects.count(model.project) == 1 else f"{model.name}/{file}"
        yield _entry(name, "installed", f"{file}, version {model.version}", model.path.stat().st_size, model.path)


def _cached() -> Iterator[dict[str, Any]]:
    if find_spec("huggingface_hub") is None:
        return
    for name, revision, weights in cached_models():
        files = ", ".join(weights[:4]) + (f" and {len(weights) - 4} more" if len(weights) > 4 else "")
        size, commit = revision.size_on_disk, revision.commit_hash
        yield _entry(str(name), "cached", files, size, revision.snapshot_path, commit=commit)


@click.command("pull")
@click.argument("name")
@opt.context_option
@opt.json_option
def pull_command(name: str, context: int | None, as_json: bool) -> None:
    """Download the model NAME from the Hugging Face Hub and print its path; cached files are not downloaded again.

    NAME is ORG/NAME, ORG/NAME:QUANT, ORG/NAME@REVISION, hf://… or the URL of a file on the hub. A model of an
    unknown family or tensor type is refused before its weights are downloaded. So is one that does not fit this
    machine's memory with --context. An interrupted download resumes.

    \b
    glinfer pull Qwen/Qwen3-0.6B-GGUF:Q8_0
    glinfer chat Qwen/Qwen3-0.6B-GGUF:Q8_0      # also downloads it
    """
    wanted = _on_a_hub(name, "downloaded")
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
@opt.json_option
def remove_command(name: str, as_json: bool) -> None:
    """Delete a downloaded model from the Hugging Face cache, which other programs share.

    ORG/NAME deletes a whole repository from the cache, ORG/NAME@REVISION one commit of it, and ORG/NAME:QUANT only
    these weights.
    """
    wanted = _on_a_hub(name, "removed")
    require_hub(wanted)
    chosen: dict[str, list[str]] | None = None
    if wanted.quant or wanted.path:
        found = cached(wanted, RepositoryCache(wanted.repo))
        if found is not None:
            chosen = {found.repository.commit: [file.path for file in found.chosen.files]}
    commits, freed = remove(wanted, chosen)
    if as_json:
        print_json({"name": str(wanted), "repo": wanted.repo, "commits": commits, "bytes": freed})
        return
    where = f" at {', '.join(each[:12] for each in commits)}" if commits else ""
    emit(f"removed {wanted}{where}: freed {megabytes(freed)}")


def _on_a_hub(name: str, done: str) -> HubName:
    """Parse the name of a model on a hub; InputError if the name is that of another model, or of no model."""
    wanted = named_on_a_hub(name)
    if wanted is not None:
        return wanted
    if os.path.lexists(name):
        raise InputError(f"{shown(name)}: found a path; models of a hub are {done} by name, such as org/name")
    try:
        path = Path(find_model(name))
    except GlinferError:
        path = Path(name)
    held = next((model for model in installed_models() if model.path == path), None)
    if any(model.path == path for model in bundled_models()):
        raise InputError(f"{shown(name)}: this model is part of glinfer and cannot be {done}")
    if held is not None:
        advice = f"'pip uninstall {held.project}' removes it" if done == "removed" else "use it without downloading it"
        raise InputError(f"{shown(name)}: this model is in an installed package; {advice}")
    raise InputError(
        f"{shown(name)}: this is not the name of a model on a hub; expected org/name, org/name:QUANT@{MAIN} or hf://…"
    )

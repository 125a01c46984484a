"""``glinfer models``: list the models on this machine that have a name."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import click

from glinfer.cli.common import json_option, megabytes, print_json, say, show
from glinfer.errors import install_command
from glinfer.formats import bundled_models
from glinfer.formats.installed import installed_models


@click.command()
@json_option
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


def _bundled() -> Iterator[dict[str, Any]]:
    keys = ("name", "description", "licence", "parameters", "bits_per_byte", "bytes")
    for model in bundled_models():
        facts = {key: getattr(model, key) for key in keys}
        yield {**facts, "kind": "bundled", "commit": None, "path": str(model.path)}


def _installed() -> Iterator[dict[str, Any]]:
    found = installed_models()
    projects = [model.project for model in found]
    for model in found:
        name = model.name if projects.count(model.project) == 1 else f"{model.name}/{model.path.name}"
        yield {
            "name": name,
            "description": f"{model.path.name}, version {model.version}",
            "bytes": model.path.stat().st_size,
            "kind": "installed",
            "commit": None,
            "path": str(model.path),
        }


def _cached() -> Iterator[dict[str, Any]]:
    if find_spec("huggingface_hub") is None:
        return
    from glinfer.hub.cache import cached_models

    for repo, revision, weights in cached_models():
        named = "" if "main" in revision.refs else f"@{(*sorted(revision.refs), revision.commit_hash)[0]}"
        files = ", ".join(weights[:4]) + (f" and {len(weights) - 4} more" if len(weights) > 4 else "")
        yield {
            "name": f"{repo}{named}",
            "description": files,
            "bytes": revision.size_on_disk,
            "kind": "cached",
            "commit": revision.commit_hash,
            "path": str(revision.snapshot_path),
        }

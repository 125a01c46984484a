"""``glinfer serve``: models behind OpenAI's HTTP routes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from glinfer.cli.common import (
    LIMITS,
    device_options,
    lora_option,
    model_options,
    model_title,
    say,
    split_name,
    tokenizer_option,
)
from glinfer.engine.batch import SchedulerOptions
from glinfer.engine.loading import fetched
from glinfer.errors import InputError, install_command
from glinfer.hub import named_on_a_hub
from glinfer.terminal import emit

SERVER_PACKAGES = ("starlette", "uvicorn", "pydantic", "prometheus_client")
"""What the extra `server` brings."""
_KEY_VARIABLE = "GLINFER_API_KEY"


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL…")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 for any that is free.")
@click.option(
    "--api-key",
    "keys",
    multiple=True,
    help=f"A key that requests must bring; may be given several times. Default: ${_KEY_VARIABLE}, several by commas.",
)
@click.option("--no-api-key", is_flag=True, help="Ask for no key though other machines can reach --host.")
@click.option("--allowed-host", "hosts", multiple=True, help="A further name of this server in requests' Host.")
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    help="A site whose pages may ask, https://example.org, say; * for all.",
)
@click.option("--slots", type=click.IntRange(1, 256), default=8, show_default=True, help="Sequences at once, by model.")
@click.option("--memory", type=click.IntRange(1), help="MiB of texture memory for a model's caches. Default: 1024.")
@click.option("--piece", type=click.IntRange(1), help="Tokens of prompts between two of an answer. Default: 512.")
@click.option(
    "--queue",
    "waiting",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    help="How many may wait, by model.",
)
@click.option(
    "--grace", type=click.FloatRange(0), default=30.0, show_default=True, help="Seconds to finish in after SIGTERM."
)
@click.option(
    "--page", type=click.Path(exists=True, file_okay=False), help="A folder to show at /. Default: a chat page."
)
@tokenizer_option
@lora_option
@model_options
@device_options
def serve_command(models: tuple[str, ...], **given: Any) -> None:
    """Serve every MODEL over HTTP, with the routes of OpenAI's API, until Ctrl-C or SIGTERM.

    Requests name a model by the file's name without its suffix, or by NAME; an adapter of --lora NAME=DIR is a model
    with the name NAME, or MODEL:NAME.

    \b
    glinfer serve shakespeare
    curl localhost:8000/v1/completions -d '{"model":"shakespeare","prompt":"O"}'
    """
    if missing := [name for name in SERVER_PACKAGES if find_spec(name) is None]:
        raise InputError(f"serving needs the package {missing[0]}, which is not installed; {install_command('server')}")
    from glinfer.server.auth import Access
    from glinfer.server.run import HttpServer, ServerOptions, check_access
    from glinfer.server.served import ModelSource

    keys = given.pop("keys") or tuple(filter(None, map(str.strip, os.environ.get(_KEY_VARIABLE, "").split(","))))
    access = Access(given.pop("host"), keys, given.pop("hosts"), given.pop("origins"))
    check_access(access, no_key=given.pop("no_api_key"))
    memory, page = given.pop("memory"), given.pop("page")
    scheduler = SchedulerOptions(
        slots=given.pop("slots"), memory=None if memory is None else memory << 20, piece=given.pop("piece")
    )
    options = ServerOptions(
        access,
        given.pop("port"),
        given.pop("grace"),
        given.pop("waiting"),
        None if page is None else Path(page),
        given.pop("device"),
        given.pop("api"),
        LIMITS[given.pop("limits")],
    )
    if given["tokenizer"] is not None and len(models) > 1:
        raise InputError("--tokenizer belongs to one model; serve several without it")
    if given["lora"] is not None and len(models) > 1:
        raise InputError("--lora belongs to one model; serve several without it")
    named = fetched_models(models, given, device=options.device, api=options.api, limits=options.limits)
    sources = [ModelSource(name, path, given, scheduler) for name, path in named]

    def say_ready() -> None:
        for each in server.worker.served.values():
            emit(f"ready: {each.name}, {each.slots} places of {each.context} tokens")

    server = HttpServer(sources, options, on_ready=say_ready)
    names = ", ".join(source.name for source in sources)
    emit(f"serving {names} at {server.address}/v1 (Ctrl-C ends it)")
    server.run()


def fetched_models(models: Sequence[str], options: Mapping[str, Any], **where: Any) -> list[tuple[str, str]]:
    """(name, path) of each model; those of a hub are fetched before anything begins.

    Args:
        models: as :func:`named_model` takes them.
        options: of :func:`glinfer.engine.loading.load_model`.
        where: its ``device``, ``api`` and ``limits``.
    """
    how = {name: value for name, value in options.items() if name not in ("tokenizer", "lora")} | where
    named = map(named_model, models)
    return [
        (name, path if named_on_a_hub(path) is None else os.fspath(fetched(path, tell=say, **how)))
        for name, path in named
    ]


def named_model(text: str) -> tuple[str, str]:
    """(name, path) of a model: ``NAME=MODEL``, or the name of its file."""
    name, path = split_name(text)
    if name:
        return name, path
    if named_on_a_hub(text) is not None:
        return model_title(text), text
    base = Path(text)
    name = base.stem if base.suffix in (".gab", ".gguf", ".safetensors", ".json") else base.name
    return name or text, text

"""``glinfer serve``: serve models over HTTP with OpenAI's routes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from glinfer.cli import options as opt
from glinfer.cli.common import model_title, say
from glinfer.engine.batch import SchedulerOptions
from glinfer.engine.loading import fetched
from glinfer.errors import InputError, required
from glinfer.hub import named_on_a_hub
from glinfer.terminal import emit

_KEY_VARIABLE = "GLINFER_API_KEY"


@click.command("serve")
@click.argument("models", nargs=-1, required=True, metavar="[NAME=]MODEL…")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 chooses a free one."
)
@click.option(
    "--api-key",
    "keys",
    multiple=True,
    help=f"API key that requests must send. Repeatable. Default: ${_KEY_VARIABLE}, comma-separated.",
)
@click.option("--no-api-key", is_flag=True, help="Require no API key even if --host is reachable.")
@click.option("--allowed-host", "hosts", multiple=True, help="Further name to accept in the Host header. Repeatable.")
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    help="Origin whose pages may send requests, such as https://example.org; * for all. Repeatable.",
)
@click.option("--slots", type=click.IntRange(1, 256), default=8, show_default=True, help="Sequences at once per model.")
@opt.cache_limit_options
@click.option(
    "--queue",
    "waiting",
    type=click.IntRange(0),
    default=256,
    show_default=True,
    help="Requests that may wait, per model.",
)
@click.option("--grace", type=opt.Seconds(0), default=30.0, show_default=True, help="Seconds to finish after SIGTERM.")
@click.option(
    "--page", type=click.Path(exists=True, file_okay=False), help="Folder to serve at /. Default: a chat page."
)
@opt.tokenizer_option
@opt.mmproj_option
@opt.lora_option
@opt.model_options
@opt.device_options
def serve_command(models: tuple[str, ...], **given: Any) -> None:
    """Serve each MODEL over HTTP with the routes of OpenAI's API, until Ctrl-C or SIGTERM.

    Requests select a model by NAME, or by its file name without the suffix. They select an adapter of --lora NAME=DIR
    as model NAME or MODEL:NAME.

    \b
    glinfer serve shakespeare
    curl localhost:8000/v1/completions -d '{"model":"shakespeare","prompt":"O"}'
    """
    require_packages("serve", "server")
    from glinfer.server.auth import Access
    from glinfer.server.run import HttpServer, ServerOptions, check_access
    from glinfer.server.served import ModelSource

    no_key = given.pop("no_api_key")
    access = Access(given.pop("host"), given.pop("keys") or _keys(no_key), given.pop("hosts"), given.pop("origins"))
    check_access(access, no_key=no_key)
    page, scheduler = given.pop("page"), SchedulerOptions(**opt.take_scheduler(given))
    options = ServerOptions(
        access,
        max_waiting=given.pop("waiting"),
        page=None if page is None else Path(page),
        port=given.pop("port"),
        grace=given.pop("grace"),
        device=given.pop("device"),
        api=given.pop("api"),
        limits=given.pop("limits"),
    )
    named = fetched_models(models, given, device=options.device, api=options.api, limits=options.limits)
    sources = [ModelSource(name, path, given, scheduler) for name, path in named]

    def say_ready() -> None:
        with contextlib.suppress(OSError):  # the reader of standard output has gone; requests can still be answered
            for each in server.worker.served.values():
                size = f"{each.slots} slots of {each.facts['max_model_len']:,} tokens"
                if each.scheduler is not None and each.slots < (scheduler.slots or 0):
                    size += f" (for {scheduler.slots} raise --memory, or lower --context)"
                emit(f"ready: {each.name}, {size} · {each.facts['renderer']}")

    server = HttpServer(sources, options, on_ready=say_ready)
    names = ", ".join(source.name for source in sources)
    keyless = "" if access.keys else " without API keys"
    emit(f"loading {names}, to be served at {server.address}/v1{keyless} (Ctrl-C to stop)")
    server.run()


def require_packages(command: str, extra: str) -> None:
    """Refuse a command whose extra is not installed; InputError if a package of the server is missing."""
    needs = f"{command} needs"
    required("starlette", extra, needs)
    required("uvicorn", extra, needs)
    required("httptools", extra, needs)
    required("pydantic", extra, needs)
    required("prometheus_client", extra, needs)


def _keys(no_key: bool) -> tuple[str, ...]:
    """The keys of the environment variable; InputError if it is set without one, unless ``no_key`` allows that."""
    value = os.environ.get(_KEY_VARIABLE)
    keys = tuple(filter(None, map(str.strip, (value or "").split(","))))
    if value is not None and not keys and not no_key:
        raise InputError(f"{_KEY_VARIABLE} is set, but has no key; set it to a key, or unset it")
    return keys


def fetched_models(models: Sequence[str], options: Mapping[str, Any], **where: Any) -> list[tuple[str, str]]:
    """Return (name, path) of each model, see :func:`named_model`, after downloading the models of a hub.

    ``options`` and ``where`` are options of :func:`glinfer.engine.loading.load_model`. InputError if ``tokenizer``,
    ``mmproj`` or ``lora`` is given with several models.
    """
    for name in ("tokenizer", "mmproj", "lora"):
        if options.get(name) is not None and len(models) > 1:
            raise InputError(f"--{name} needs a single MODEL, found {len(models)}; leave out --{name}")
    how = {name: value for name, value in options.items() if name not in ("tokenizer", "mmproj", "lora")} | where
    named = map(named_model, models)
    return [
        (name, path if named_on_a_hub(path) is None else os.fspath(fetched(path, tell=say, **how)))
        for name, path in named
    ]


def named_model(text: str) -> tuple[str, str]:
    """Return (name, path) of ``NAME=MODEL``, or of a file, which is named without its suffix."""
    name, path = opt.split_name(text)
    if name:
        return name, path
    if named_on_a_hub(text) is not None:
        return model_title(text), text
    base = Path(text)
    name = base.stem if base.suffix in (".gab", ".gguf", ".safetensors", ".json") else base.name
    return name or text, text

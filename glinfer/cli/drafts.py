"""``--speculate`` and ``--draft``: speculative decoding for commands that write text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from glinfer.cli.common import options, progress, say
from glinfer.engine.loading import fetched, load_model
from glinfer.engine.model import Model
from glinfer.engine.run.drafts import SPECULATE, check_speculation

draft_options = options(
    click.option(
        "--speculate",
        type=click.Choice(SPECULATE),
        help="Draft tokens from earlier text and check several in one run. The text stays the same; text that copies "
        "from its prompt is generated faster.",
    ),
    click.option(
        "--draft",
        type=click.Path(),
        metavar="MODEL",
        help="Draft tokens with a smaller model that has the same tokenizer. The text stays the same.",
    ),
)
"""``--speculate`` and ``--draft``."""


def take_drafts(given: dict[str, Any]) -> dict[str, str]:
    """Remove these options from ``given``, and return those that are set; InputError if both are given."""
    taken = {name: given.pop(name) for name in ("speculate", "draft")}
    check_speculation(**taken)
    return {name: value for name, value in taken.items() if value is not None}


@contextmanager
def opened_drafts(model: Model, drafts: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield the options for :meth:`glinfer.engine.model.Model.stream`, with the draft model open on the same device."""
    if "draft" not in drafts:
        yield dict(drafts)
        return
    path = fetched(drafts["draft"], device=model.device, tell=say)
    with progress("uploading the draft model") as advance:
        other = load_model(path, device=model.device, on_upload=advance)
    with other:
        yield {"draft": other}

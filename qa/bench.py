"""``python -m qa bench``: ``glinfer bench`` with other engines."""

from __future__ import annotations

import inspect
from typing import Any

import click

from glinfer.cli.bench import BenchOptions, bench_command, names_of, run_bench
from glinfer.errors import InputError
from glinfer.formats import Checkpoint
from qa.peers.peer import PEERS, Peer, open_peers


def bench(peers: str, **options: Any) -> None:
    """Time a model as ``glinfer bench`` does, interleaved with the engines in ``peers``."""
    names = names_of(peers)
    if names and options["plan"] == "reference":
        raise InputError("--peers needs --plan fast; leave it out or use that plan")

    def opened(checkpoint: Checkpoint) -> list[Peer]:
        return open_peers(names, checkpoint)

    run_bench(BenchOptions(**options, open_others=opened if names else None))


_HELP = f"""{inspect.cleandoc(bench_command.help or "")}

--peers runs the same checkpoint in other engines, interleaved with the fast plan.

\b
python -m qa bench shakespeare --weights f32,q8 --peers torch
"""
_PEERS_OPTION = click.Option(
    ["--peers"], default="", metavar="P[,P…]", help=f"Other engines to time: {', '.join(PEERS)}."
)
bench_with_peers = click.Command("bench", params=[*bench_command.params, _PEERS_OPTION], callback=bench, help=_HELP)

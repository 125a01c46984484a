"""``python -m qa``: instruments for building glinfer, run from the checkout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

import click

from glinfer.cli.app import CONTEXT_SETTINGS, Commands, main

_COMMANDS: Mapping[str, Callable[[], click.Command]] = {
    "api": lambda: import_module("qa.api").api,
    "audit": lambda: import_module("qa.advisories").audit_command,
    "batch-speed": lambda: import_module("qa.batch_speed").batch_speed,
    "bench": lambda: import_module("qa.bench").bench_with_peers,
    "bench-web": lambda: import_module("qa.bench_web").bench_web_command,
    "big-batch": lambda: import_module("qa.big_batch").big_batch,
    "check-cost": lambda: import_module("qa.flips.cost").check_cost_command,
    "choices": lambda: import_module("qa.choices").choices_command,
    "embed-speed": lambda: import_module("qa.embed_speed").embed_speed_command,
    "embed-web": lambda: import_module("qa.embed_web").embed_web_command,
    "faults": lambda: import_module("qa.faults.run").faults_command,
    "flips": lambda: import_module("qa.flips.command").flips_command,
    "fuzz": lambda: import_module("qa.fuzz.requests").fuzz_command,
    "health": lambda: import_module("qa.health").health_command,
    "kernels": lambda: import_module("qa.kernels.command").kernels,
    "kill-batch": lambda: import_module("qa.kill_batch").kill_batch,
    "kill-ray": lambda: import_module("qa.kill_ray").kill_ray,
    "lock": lambda: import_module("qa.lock").lock,
    "products": lambda: import_module("qa.products").products,
    "release": lambda: import_module("qa.release").release,
    "renderers": lambda: import_module("qa.renderers.command").renderers_command,
    "same": lambda: import_module("qa.same").same_command,
    "sbom": lambda: import_module("qa.sbom").sbom,
    "serve-load": lambda: import_module("qa.serve_load").serve_load_command,
    "soak": lambda: import_module("qa.soak.command").soak_command,
    "soak-server": lambda: import_module("qa.soak.command").soak_server_command,
    "stress": lambda: import_module("qa.stress.command").stress_command,
    "structured": lambda: import_module("qa.structured").structured_command,
    "style": lambda: import_module("qa.style").style,
    "supply": lambda: import_module("qa.supply").supply,
}
_SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Check": {
        "choices": "Compare choices by passes and by NumPy, token by token.",
        "faults": "Plant faults in a copy, and see which tests find them.",
        "flips": "Flip bits of live textures, and count which are found.",
        "fuzz": "Send damaged requests to every route; none may fail.",
        "kernels": "Compare every kernel with float64, and time it.",
        "renderers": "Run the same checks on the renderers of other systems.",
        "same": "Compare texts of all renderers and plans, token by token.",
        "structured": "Validate texts of many JSON schemas and expressions.",
        "style": "List phrases that make texts hard to read.",
        "supply": "Build and test at both ends of all dependencies.",
    },
    "Load": {
        "big-batch": "Run a million lines, and see that memory stays.",
        "health": "Time /health while the largest bodies are read.",
        "kill-batch": "Kill batches in every rough way; no result may be lost.",
        "kill-ray": "Kill actors and nodes of a cluster; no result may be lost.",
        "serve-load": "Ask a server with many clients at once.",
        "soak": "Run many tokens, and see that nothing grows or changes.",
        "soak-server": "Load a server for long, and see the same of it.",
        "stress": "Repeat work under load, and compare bit for bit.",
    },
    "Release": {
        "api": "Compare the public names with those written down.",
        "audit": "Look for known vulnerabilities of what is pinned.",
        "release": "Run the checklist of a release.",
        "sbom": "Write the bill of materials of a wheel.",
        "lock": "Pin what the tests are installed with, by hashes.",
    },
    "Measure": {
        "batch-speed": "Time run-batch by default sampling and greedy.",
        "bench": "Time tokens beside PyTorch and llama.cpp.",
        "bench-web": "Time tokens in Chromium beside other engines.",
        "embed-speed": "Time sentences beside PyTorch.",
        "embed-web": "Time sentences in Chromium beside transformers.js.",
        "check-cost": "Time checks of live textures between two tokens.",
        "products": "Time every strategy of 'matmul' on many shapes.",
    },
}


@click.group(
    cls=Commands,
    table=_COMMANDS,
    sections=_SECTIONS,
    program="python -m qa",
    invoke_without_command=True,
    context_settings=CONTEXT_SETTINGS,
)
@click.pass_context
def qa(context: click.Context) -> None:
    """Check, load and measure glinfer itself, from its checkout.

    These commands are for who works on glinfer; the command 'glinfer' has what its users need. 'python -m qa.fuzz.run'
    fuzzes every reader of files.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


if __name__ == "__main__":
    main(group=qa)

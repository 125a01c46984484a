"""``python -m qa``: instruments for building glinfer, run from the checkout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module

import click

from glinfer.cli.app import CONTEXT_SETTINGS, Commands, main

_COMMANDS: Mapping[str, Callable[[], click.Command]] = {
    "api": lambda: import_module("qa.api").api,
    "audit": lambda: import_module("qa.lock").audit_command,
    "batch-speed": lambda: import_module("qa.batch_speed").batch_speed,
    "bench": lambda: import_module("qa.bench").bench_with_peers,
    "bench-web": lambda: import_module("qa.bench_web").bench_web_command,
    "big-batch": lambda: import_module("qa.big_batch").big_batch,
    "choices": lambda: import_module("qa.choices").choices_command,
    "embed-speed": lambda: import_module("qa.embed_speed").embed_speed_command,
    "faults": lambda: import_module("qa.faults.run").faults_command,
    "flips": lambda: import_module("qa.flips.command").flips_command,
    "fuzz": lambda: import_module("qa.fuzz.requests").fuzz_command,
    "health": lambda: import_module("qa.health").health_command,
    "kernels": lambda: import_module("qa.kernels.command").kernels,
    "kill-batch": lambda: import_module("qa.kill_batch").kill_batch,
    "kill-ray": lambda: import_module("qa.kill_ray").kill_ray,
    "lock": lambda: import_module("qa.lock").lock,
    "products": lambda: import_module("qa.products").products,
    "programs": lambda: import_module("qa.programs").programs_command,
    "release": lambda: import_module("qa.release").release,
    "renderers": lambda: import_module("qa.renderers.command").renderers_command,
    "same": lambda: import_module("qa.same").same_command,
    "sbom": lambda: import_module("qa.lock").sbom,
    "serve-load": lambda: import_module("qa.serve_load").serve_load_command,
    "soak": lambda: import_module("qa.soak.command").soak_command,
    "soak-server": lambda: import_module("qa.soak.command").soak_server_command,
    "structured": lambda: import_module("qa.structured").structured_command,
    "style": lambda: import_module("qa.style").style,
    "supply": lambda: import_module("qa.supply").supply,
}
_SECTIONS: Mapping[str, Mapping[str, str]] = {
    "Check": {
        "choices": "Compare sampling on the GPU with sampling in NumPy.",
        "faults": "Plant faults in a copy and report which tests find them.",
        "flips": "Flip bits of live textures and count those detected.",
        "fuzz": "Send malformed requests to every route of the server.",
        "kernels": "Compare every kernel with float64, and time it.",
        "renderers": "Run the same checks on the renderers of many systems.",
        "programs": "Compare every plan with its recorded hash.",
        "same": "Compare texts of all renderers and plans, token by token.",
        "structured": "Validate output for many JSON schemas and expressions.",
        "style": "List phrases that are hard to read.",
        "supply": "Build and test with the oldest and newest dependencies.",
    },
    "Load": {
        "big-batch": "Run a million lines and check the memory.",
        "health": "Time /health while the server reads the largest bodies.",
        "kill-batch": "Kill running batches; no result may be lost.",
        "kill-ray": "Kill actors and nodes of a cluster; no result may be lost.",
        "serve-load": "Load a server with many clients at once.",
        "soak": "Run many tokens and check for leaks and changes.",
        "soak-server": "Load a server for an hour with the same checks.",
    },
    "Release": {
        "api": "Compare the public names with those recorded.",
        "audit": "Check pinned dependencies for known vulnerabilities.",
        "release": "Run the release checklist.",
        "sbom": "Write the bill of materials of a wheel.",
        "lock": "Pin the test dependencies by hash.",
    },
    "Measure": {
        "batch-speed": "Benchmark run-batch, with sampling and greedy.",
        "bench": "Benchmark against PyTorch and llama.cpp.",
        "bench-web": "Benchmark against other engines in Chromium.",
        "embed-speed": "Benchmark embeddings against PyTorch.",
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
    """Test, load and measure glinfer itself, from a source checkout.

    These commands are for contributors; users need only the command 'glinfer'. 'python -m qa.fuzz.run' fuzzes every
    file reader.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


if __name__ == "__main__":
    main(group=qa)

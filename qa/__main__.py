"""``python -m qa``: instruments for building glinfer, run from the checkout."""

from __future__ import annotations

from collections.abc import Mapping

import click

from glinfer.cli.app import CONTEXT_SETTINGS, Commands, main

_COMMANDS: Mapping[str, Mapping[str, tuple[str, str]]] = {
    "Check": {
        "choices": ("choices:choices_command", "Compare sampling on the GPU with sampling in NumPy."),
        "faults": ("faults.run:faults_command", "Plant faults in a copy and report which tests find them."),
        "fuzz": ("fuzz.requests:fuzz_command", "Send malformed requests to every route of the server."),
        "kernels": ("kernels.command:kernels", "Compare every kernel with float64, and time it."),
        "renderers": ("renderers.command:renderers_command", "Run the same checks on the renderers of many systems."),
        "programs": ("programs:programs_command", "Compare every plan with its recorded hash."),
        "style": ("style:style", "List phrases that are hard to read."),
        "supply": ("supply:supply", "Build and test with the oldest and newest dependencies."),
    },
    "Load": {
        "kill-batch": ("kill_batch:kill_batch", "Kill running batches; no result may be lost."),
        "serve-load": ("serve_load:serve_load_command", "Load a server with many clients at once."),
        "soak": ("soak.command:soak_command", "Load a server for an hour and check for leaks and changes."),
    },
    "Release": {
        "api": ("api:api", "Compare the public names with those recorded."),
        "audit": ("supply:audit_command", "Check pinned dependencies for known vulnerabilities."),
        "pictures": ("pictures.command:pictures", "Make the pictures and transcripts of the documents."),
        "release": ("release:release", "Run the release checklist."),
        "sbom": ("supply:sbom", "Write the bill of materials of a wheel."),
        "lock": ("supply:lock", "Pin the test dependencies by hash."),
    },
    "Measure": {
        "bench": ("bench:bench_with_peers", "Benchmark against PyTorch and llama.cpp."),
        "bench-web": ("bench_web:bench_web_command", "Benchmark against other engines in Chromium."),
        "embed-speed": ("embed_speed:embed_speed_command", "Benchmark embeddings against PyTorch."),
        "figures": ("figures.command:figures_command", "Measure all published figures and write them."),
    },
}


@click.group(
    cls=Commands,
    commands_by_section=_COMMANDS,
    package="qa",
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

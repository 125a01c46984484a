"""``python -m qa kernels``: check every kernel against float64 and time it."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import device_options, json_option, print_json, progress, show_table
from glinfer.errors import InputError
from glinfer.quant.threads import cores
from qa.kernels.measure import (
    KernelReport,
    KernelRow,
    cases_named,
    error_text,
    measure_kernels,
    read_page,
    write_table,
)


@click.command()
@click.option(
    "--kernel",
    "names",
    multiple=True,
    metavar="NAME",
    help="Run only kernels that match, such as '*norm*'. Repeatable.",
)
@click.option("--no-times", is_flag=True, help="Check the kernels without timing them.")
@click.option(
    "--write", "page", type=click.Path(), metavar="PATH", help="Rewrite the table in this marked Markdown file."
)
@json_option
@device_options
def kernels(names: tuple[str, ...], no_times: bool, page: str | None, as_json: bool, **options: Any) -> None:
    """Run every kernel of device.ops, compare it with float64, and time it.

    Shapes include 1×1, primes, non-multiples of 4, 32 and 256, wide and tall ones, on textures of the renderer's
    maximum size and on small ones, where rows wrap. Errors are relative to the largest element of the result. A time
    is the median of up to 25 calls after two warm-ups. The exit status is 1 if an error exceeds its tolerance.

    \b
    python -m qa kernels --kernel 'matmul*' --no-times
    python -m qa kernels --write docs/kernels.md --json > kernels.json
    """
    cases = cases_named(names)
    if page is not None:
        if names:
            raise InputError("--write writes the table of all kernels; leave --kernel out")
        read_page(page)  # which takes a moment, and the measurements some minutes
    with progress("kernels") as advance:
        report = measure_kernels(
            cases,
            device=options["device"],
            api=options["api"],
            limits=options["limits"],
            times=not no_times,
            processes=cores(),
            on_step=advance,
        )
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    if report.failed:
        if page is not None:
            click.echo(f"{page} is left as it was, because a kernel is wrong", err=True)
        raise click.exceptions.Exit(1)
    if page is not None:
        write_table(page, report.markdown())


def _show(report: KernelReport) -> None:
    show_table(report.table())
    for row in report.failed:
        click.echo(_complaint(row))
    verdict = f"{len(report.failed)} WRONG" if report.failed else "all within what is allowed"
    count = len({row.kernel for row in report.rows})
    click.echo(f"\n{count} kernel{'s' if count != 1 else ''}, {verdict} · {report.renderer}")


def _complaint(row: KernelRow) -> str:
    if row.problem:
        return f"{row.kernel}: {row.problem}"
    return (
        f"{row.kernel}: an error of {error_text(row.error)}, {row.worst}; at most {error_text(row.tolerance)} is right"
    )

"""``python -m qa kernels``: check every kernel against float64 and time it."""

from __future__ import annotations

from typing import Any

import click

from glinfer.cli.common import print_json, progress, show_table
from glinfer.cli.options import device_options, json_option
from glinfer.errors import InputError
from qa.kernels.measure import KernelReport, cases_named, error_text, measure_kernels, page_with, write_page


@click.command()
@click.option("--kernel", "names", multiple=True, metavar="NAME", help="Only kernels that match '*norm*'. Repeatable.")
@click.option("--no-times", is_flag=True, help="Check the kernels without timing them.")
@click.option("--write", "page", type=click.Path(), metavar="PATH", help="Rewrite the table in this Markdown file.")
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
        page_with(page, "")  # which takes a moment, and the measurements some minutes
    with progress("kernels") as advance:
        where = {name: options[name] for name in ("device", "api", "limits")}
        report = measure_kernels(cases, where, times=not no_times, on_step=advance)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)
    if report.failed:
        if page is not None:
            click.echo(f"{page} is left as it was, because a kernel is wrong", err=True)
        raise click.exceptions.Exit(1)
    if page is not None:
        write_page(page, page_with(page, report.markdown()))


def _show(report: KernelReport) -> None:
    show_table(report.table())
    for row in report.failed:
        allowed = f"an error of {error_text(row.error)}, {row.worst}; at most {error_text(row.tolerance)} is right"
        click.echo(f"{row.kernel}: {row.problem or allowed}")
    verdict = f"{len(report.failed)} WRONG" if report.failed else "all within what is allowed"
    count = len({row.kernel for row in report.rows})
    click.echo(f"\n{count} kernel{'s' if count != 1 else ''}, {verdict} · {report.renderer}")

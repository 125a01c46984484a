"""A progress bar of a download on a terminal's standard error: bytes, speed and remaining time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from glinfer.terminal import printable


@contextlib.contextmanager
def download_bar(what: str, total: int, begun: int) -> Iterator[Callable[[int], None]]:
    """Show a bar within the block; yields a function to call with each number of new bytes.

    Nothing is shown if standard error is not a terminal, or if ``HF_HUB_DISABLE_PROGRESS_BARS`` is set.
    """
    from huggingface_hub import constants
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    if not console.is_terminal or constants.HF_HUB_DISABLE_PROGRESS_BARS:
        yield lambda count: None
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        *(BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(), TextColumn("left")),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(printable(what), total=total, completed=begun)
        yield lambda count: bar.advance(task, count)

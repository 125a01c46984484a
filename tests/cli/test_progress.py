"""The bar of long commands, drawn at times that are made up."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console
from rich.progress import Progress

from glinfer.cli.common import bar_columns


def drawn(total: int | None, done: int, seconds: float) -> str:
    """One line of the bar after so many seconds."""
    now = [100.0]
    console = Console(file=StringIO(), width=80, force_terminal=True, color_system=None)
    bar = Progress(*bar_columns(), console=console, get_time=lambda: now[0], auto_refresh=False)
    task = bar.add_task("soaking", total=total)
    now[0] += seconds
    bar.update(task, completed=done)
    console.print(bar.get_renderable())
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().strip()


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0:00:00 elapsed"), (83, "0:01:23 elapsed")])
def test_the_time_says_what_it_is(seconds: float, shown: str) -> None:
    assert drawn(200, 50, seconds).endswith(f" 25% {shown}")


def test_a_bar_without_an_end_shows_no_percentage() -> None:
    line = drawn(None, 50, 5)
    assert line.startswith("soaking")
    assert line.endswith("0:00:05 elapsed")
    assert "%" not in line

"""How many rows a run may have, so that no draw of a GPU is expected to take longer than 50 ms.

Some drivers drop a longer draw, and Windows resets a GPU after two seconds. Draws of products are the longest; their
time grows with their rows and with the texels of their weights. web/glinfer/pace.js does the same.
"""

from __future__ import annotations

import time

from glinfer.program.session import WATCHED, Session

_LONGEST = 0.05
"""Seconds of a draw."""
SLOW = 1e8
"""Rows × texels of weights in a second, assumed until a run was measured."""


class Pace:
    """Limits the runs of one session; the rate that they measure belongs to the device."""

    def __init__(self, session: Session, targets: int) -> None:
        """Limit the runs of ``session`` to multiples of ``targets`` rows; those of software renderers have no limit."""
        self._device, self._targets = session.device, targets
        table = session.plan.table
        sizes = [
            sum(
                layout.width * layout.height
                for layout in (session.texture(name).layout for _, name in draw.inputs if table[name].kind == "weight")
            )
            for draw in session.plan.draws
            if draw.op in WATCHED
        ]
        self._all, self._largest = sum(sizes), max(sizes, default=0)

    def rows(self, most: int) -> int:
        """At most ``most`` rows."""
        if self._device.in_main_memory or not self._largest:
            return most
        rate = SLOW if self._device.rate is None else self._device.rate
        allowed = int(_LONGEST * rate / self._largest) // self._targets * self._targets
        return min(most, max(self._targets, allowed))

    def measure(self, rows: int, most: int, since: float) -> None:
        """Wait for a run of ``rows`` rows that began at ``since``, by :func:`time.perf_counter`, and note its rate.

        Runs of all ``most`` rows that a plan can have are not measured while the rate allows them, nor are short runs.
        """
        allowed = self.rows(most)
        if allowed < most and 2 * rows > allowed:
            self._device.raw.finish()
            self._device.rate = rows * self._all / max(time.perf_counter() - since, 1e-6)

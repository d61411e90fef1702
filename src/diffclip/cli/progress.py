"""Progress on stderr: percent, time left and rate, on a terminal as bars, in a pipe as a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffclip.data.workers import Progress

_SECONDS_A_LINE = 15.0


@contextmanager
def showing_progress(title: str, totals: Mapping[str, int]) -> Iterator[Progress]:
    """Yield a callback that shows a bar for each kind of item; the bars vanish when the block ends.

    Args:
        title: stands behind each bar.
        totals: the number of items of each kind, where the caller of the callback does not know it.
    """
    if not sys.stderr.isatty():
        yield _lines(title, totals)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (
        TaskProgressColumn(show_speed=True),
        TimeRemainingColumn(),
        BarColumn(bar_width=20),
        TextColumn("{task.description}", markup=False),
    )
    bars = Bars(*columns, console=Console(stderr=True), transient=True)
    tasks: dict[str, TaskID] = {}

    def advance(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(f"{what}: {title}", total=total or totals.get(what))
        bars.advance(tasks[what], done)

    with bars:
        yield advance


def _lines(title: str, totals: Mapping[str, int]) -> Progress:
    """Return a callback that prints a line every 15 seconds."""
    called = told = time.monotonic()
    counts: dict[str, int] = {}
    since: dict[str, float] = {}

    def advance(what: str, done: int, total: int | None) -> None:
        nonlocal called, told
        counts[what] = counts.get(what, 0) + done
        total, now = total or totals.get(what), time.monotonic()
        since.setdefault(what, called)
        called = now
        if total and counts[what] < total and now - told > _SECONDS_A_LINE:
            told = now
            left = (now - since[what]) * (total - counts[what]) / counts[what]
            share = 100 * counts[what] / total
            print(f"{share:3.0f} %, {left:.0f} s left: {what}: {title}", file=sys.stderr, flush=True)

    return advance

"""Progress on stderr: what is done, of how many, how fast, and the time left."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diffclip.evaluation.embed import Progress


@contextmanager
def showing_progress(title: str, totals: Mapping[str, int]) -> Iterator[Progress]:
    """A callback that draws a bar on stderr for each kind of thing counted; the bars vanish when the block
    ends.

    Args:
        title: stands before each bar.
        totals: how many there are of what the caller of the callback cannot tell.
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        ProgressColumn,
        Task,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.progress import Progress as Bars
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(f"{task.speed:,.0f}/s" if task.speed else "", style="progress.data.speed")

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), Rate())
    console = Console(stderr=True)
    bars = Bars(
        *columns, TimeRemainingColumn(), console=console, transient=True, disable=not console.is_terminal
    )
    tasks: dict[str, TaskID] = {}

    def advance(what: str, done: int, total: int | None) -> None:
        if what not in tasks:
            tasks[what] = bars.add_task(f"{title}: {what}", total=total or totals.get(what))
        bars.advance(tasks[what], done)

    with bars:
        yield advance

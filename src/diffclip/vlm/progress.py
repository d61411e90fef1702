"""Progress of long work on stderr: a bar on a terminal, else a line now and then, both with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from datetime import timedelta
from types import TracebackType
from typing import TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.progress import Progress as Bar

_LINE_EVERY, _SHORT = 15.0, 5.0
"""Seconds between two lines; work that takes less than `_SHORT` prints none."""
T = TypeVar("T")


class Progress:
    """Show progress within a `with` block; call it with the number of finished items.

    Args:
        label: name of the work.
        total: number of items.
        done: items that were finished before this start; the time left is estimated from the others.
    """

    def __init__(self, label: str, total: int, done: int = 0) -> None:
        self._label, self._total, self._first, self._done = label, total, done, done
        console = Console(file=sys.stderr)
        self._has_terminal = console.is_terminal
        columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
        status = TextColumn("{task.fields[status]}", markup=False)
        self._bar = Bar(*columns, status, console=console, disable=not self._has_terminal)
        self._task = self._bar.add_task(label, total=total, completed=done, status="")

    def __enter__(self) -> Progress:
        self._start = self._last_line = time.monotonic()
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    @property
    def seconds_left(self) -> float | None:
        """The estimated time left, in seconds; None before the first item is finished."""
        finished = self._done - self._first
        seconds = time.monotonic() - self._start
        return seconds / finished * (self._total - self._done) if finished else None

    def __call__(self, done: int, status: str = "", total: int | None = None) -> None:
        """Show that `done` items are finished, with `status` before the time left; `total` corrects the number."""
        self._done, self._total = done, total or self._total
        left, now = self.seconds_left, time.monotonic()
        parts = [status] if status else []
        parts += [f"{timedelta(seconds=round(left))} left"] if left else []
        text = "  ".join(parts)
        self._bar.update(self._task, completed=done, total=self._total, status=text)
        ended = done == self._total and now - self._start > _SHORT
        if not self._has_terminal and (now - self._last_line > _LINE_EVERY or ended):
            self._last_line = now
            print(f"{self._label}: {done:,}/{self._total:,}  {text}".rstrip(), file=sys.stderr, flush=True)


def track(items: Iterable[T], label: str, total: int) -> Iterator[T]:
    """Yield `items` and show how many are finished."""
    with Progress(label, total) as show:
        for number, item in enumerate(items, 1):
            yield item
            show(number)

"""How fast a run is and how long it still takes.

The rate is that of recent steps, waiting for data included. What is not a usual step stays out of it: the first steps
of a start (memory is claimed, kernels are compiled), the first step of an epoch (the readers start anew), and pauses.
Pauses and beginnings of epochs that are still to come count into the time left, at the mean length they had so far.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple

# of the window, which is the longer of the two
_STEPS, _SECONDS = 50, 120.0
# steps of a start that count only as long as there is no later one
_WARM_UP = 5
_EPOCH = "epoch"


class _Totals(NamedTuple):
    """Sums over the usual steps of this start, pauses left out."""

    steps: int = 0
    seconds: float = 0.0
    samples: float = 0.0
    wait: float = 0.0


class Pace:
    """Rate and time left of a run of `steps` steps that starts after step `done`.

    Args:
        steps: of the whole run.
        done: steps that were made before this start.
        steps_per_epoch: a checkpoint follows each epoch; None: no pauses are expected.
        validate_every: epochs; the last epoch is always validated. None: no validations are expected.
        checkpoint_every: steps; None: once an epoch.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        steps: int,
        done: int = 0,
        steps_per_epoch: int | None = None,
        validate_every: int | None = None,
        checkpoint_every: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps, self._step = steps, done
        self._per_epoch, self._validate, self._checkpoint = steps_per_epoch, validate_every, checkpoint_every
        self._clock = clock
        # the totals at the end of each step of the window, before it those at its start
        self._window = deque([_Totals()])
        self._samples = 0.0
        self._ended: float | None = None
        self._paused = 0.0
        self._pausing = False
        self._lengths: dict[str, list[float]] = {}
        # the step that the last pause of a kind came after
        self._after: dict[str, int] = {}

    def step(self, step: int, samples: float, data_wait: float = 0.0) -> None:
        """Step `step` has just ended; `samples` counts those of the whole run, `data_wait` is its share of waiting."""
        now = self._clock()
        if self._ended is not None:
            seconds = max(now - self._ended - self._paused, 0.0)
            if self._per_epoch and self._per_epoch > 1 and (step - 1) % self._per_epoch == 0:
                self._begin_epoch(seconds)
            else:
                self._count(seconds, max(samples - self._samples, 0.0), data_wait * seconds)
        self._ended, self._paused, self._samples, self._step = now, 0.0, samples, step

    @contextmanager
    def pause(self, kind: str) -> Iterator[None]:
        """What happens within the block is no part of a step; a pause within a pause is part of the outer one."""
        if self._pausing:
            yield
            return
        started, self._pausing = self._clock(), True
        try:
            yield
        finally:
            length = self._clock() - started
            self._pausing = False
            self._paused += length
            self._lengths.setdefault(kind, []).append(length)
            self._after[kind] = self._step

    @property
    def samples_per_second(self) -> float | None:
        """Of the window, over all processes; None before there is one."""
        recent = self._recent()
        return recent.samples / recent.seconds if recent.seconds > 0 else None

    @property
    def data_wait(self) -> float | None:
        """The share of the window's time, 0 to 1, that was spent waiting for data; None before there is one."""
        recent = self._recent()
        return recent.wait / recent.seconds if recent.seconds > 0 else None

    @property
    def seconds_left(self) -> float | None:
        """From the last step to the end of the run; None before two steps of this start are done."""
        recent = self._recent()
        if self._step >= self._steps:
            return self._pauses_left()
        if not recent.steps:
            return None
        return (self._steps - self._step) * recent.seconds / recent.steps + self._pauses_left()

    def _recent(self) -> _Totals:
        first, last = self._window[0], self._window[-1]
        return _Totals(
            last.steps - first.steps,
            last.seconds - first.seconds,
            last.samples - first.samples,
            last.wait - first.wait,
        )

    def _count(self, seconds: float, samples: float, wait: float) -> None:
        window, last = self._window, self._window[-1]
        if last.steps <= _WARM_UP:
            window.clear()
            window.append(last)
        window.append(
            _Totals(last.steps + 1, last.seconds + seconds, last.samples + samples, last.wait + wait)
        )
        while len(window) > _STEPS + 1 and window[-1].seconds - window[1].seconds >= _SECONDS:
            window.popleft()

    def _begin_epoch(self, seconds: float) -> None:
        """What the first step of an epoch takes beyond a usual one is a pause that comes once an epoch."""
        recent = self._recent()
        if recent.steps:
            extra = seconds - recent.seconds / recent.steps
            self._lengths.setdefault(_EPOCH, []).append(max(extra, 0.0))

    def _pauses_left(self) -> float:
        return sum(
            self._to_come(kind) * sum(lengths) / len(lengths) for kind, lengths in self._lengths.items()
        )

    def _to_come(self, kind: str) -> int:
        """How many pauses of `kind` are due from now to the end; one due now counts until it has been."""
        if not self._per_epoch:
            return 0
        after = self._step if self._after.get(kind) == self._step else self._step - 1
        due = {"validation": self._validations, "checkpoint": self._checkpoints, _EPOCH: self._beginnings}
        return due[kind](self._steps) - due[kind](max(after, 0)) if kind in due else 0

    def _validations(self, step: int) -> int:
        """How many come after steps 1 to `step`."""
        if not self._validate or not self._per_epoch:
            return 0
        epoch, epochs = step // self._per_epoch, self._steps // self._per_epoch
        return epoch // self._validate + (epoch == epochs and epochs % self._validate != 0)

    def _checkpoints(self, step: int) -> int:
        ends = self._per_epoch or self._steps
        if not self._checkpoint:
            return step // ends
        return step // ends + step // self._checkpoint - step // math.lcm(ends, self._checkpoint)

    def _beginnings(self, step: int) -> int:
        """How many epochs begin with steps 2 to `step` + 1, but after the last step."""
        ends = self._per_epoch or self._steps
        return min(step, self._steps - 1) // ends


def duration(seconds: float) -> str:
    """ "45 s", "12 min", "3 h 05 min" or "2 d 04 h"."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(seconds / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def clock_time(moment: float, now: float) -> str:
    """The local time `moment` as one says it at `now` (both unix seconds): "14:32", "Tue 14:32" or "3 Dec 14:32"."""
    then, today = datetime.fromtimestamp(moment), datetime.fromtimestamp(now)
    days = abs((then.date() - today.date()).days)
    if days == 0:
        return f"{then:%H:%M}"
    return f"{then:%a %H:%M}" if days < 7 else f"{then.day} {then:%b %H:%M}"

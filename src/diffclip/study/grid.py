"""The whole grid of a study, brought to its end from wherever it is: the sweep, then every model and ablation."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch

from diffclip.errors import InputError
from diffclip.files import disk_errors, lock_file
from diffclip.study.attempt import Ended
from diffclip.study.choose import choose, runs_so_far
from diffclip.study.folder import claim_study, diverged_at, is_finished
from diffclip.study.one import Place, remove_checkpoints, why_anew
from diffclip.study.pace import Pace
from diffclip.study.plan import GROUPS, Group, Planned, grid_runs, repeats_lines, sweep_runs
from diffclip.study.ready import draw_for_suites
from diffclip.study.recipe import Study
from diffclip.study.timing import read_timing, time_arms
from diffclip.study.workers import Here, Processes, Workers
from diffclip.training.logging import duration

_POLL = 0.5  # seconds
_ON_A_GPU = 14
"""Runs at most: ten that train keep it busy, while others fit their probes on the CPU."""
_TIMING = {"cpu": 400.0, "cuda": 60.0}
"""Seconds for timing a step of all arms, which needs the machine for itself."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)


@dataclass
class Tally:
    """How far a study is.

    Attributes:
        total: runs of the groups that were wanted.
        done: how many of them are finished.
        failures: the runs that failed in this call.
        stopped: what stopped this call before the end: "time", or the signal's number; None.
    """

    total: int
    done: int = 0
    failures: list[Ended] = field(default_factory=list)
    stopped: str | int | None = None


def run_study(
    study: Study,
    place: Place,
    say: Callable[[str], None],
    *,
    groups: Collection[Group] = GROUPS,
    until: Group | None = None,
    threads: int | None = None,
    seconds: float | None = None,
    finished: Callable[[], None] = lambda: None,
) -> Tally:
    """Do the runs of `groups` that are not finished, `place.side_by_side` at a time; when all of the study are, time a
    step of every arm.

    Args:
        say: gets a line when a run starts and when it ends.
        until: when all runs of this group have ended, and of those before it, no other is begun: until then the later
            ones only keep busy who would be idle.
        threads: of each run; None: 1 where several run at a time, else torch's own number.
        seconds: from now on; then runs are asked to stop, and before it none is begun that would not end in time.
        finished: called after each run that has ended well.

    Raises:
        InputError: the folders cannot be used, or models are wanted and the sweep has not been done.
    """
    deadline = None if seconds is None else time.monotonic() + seconds
    with disk_errors(place.runs):
        place.runs.mkdir(parents=True, exist_ok=True)
    lock = lock_file(place.runs / ".lock")
    if isinstance(lock, str):
        raise InputError(f"{lock} does a study in {place.runs}: wait for it, or choose other --runs")
    with lock:
        claim_study(study, place.output)
        cores = len(os.sched_getaffinity(0))
        wanted = [planned for planned in runs_so_far(study, place.output) if planned.group in groups]
        tally = Tally(len(wanted))
        if not all(is_finished(study, planned, place.output) for planned in wanted):
            if place.draw_scenes(study, cores):
                say(f"scenes drawn in {place.runs}")
            draw_for_suites(study, groups, cores)
        workers = _workers(study, place, threads, deadline)
        with closing(workers), _listening() as signals:
            job = _Job(study, place, say, tally, workers, deadline, signals, finished, until)
            job.do(groups)
        # the other processes have gone, and signals end it at once: it leaves nothing half done
        if tally.stopped is None and not tally.failures and _wants_timing(study, place):
            left = math.inf if deadline is None else deadline - time.monotonic()
            if left < _TIMING[place.device]:
                say("the steps of all arms are timed by the next call, for which this one has no time")
            else:
                say("timing a training step of every arm, in turns")
                alone = torch.get_num_threads() if place.side_by_side == 1 else 1
                time_arms(study, place, threads or alone, _TIMING[place.device])
    return tally


def _wants_timing(study: Study, place: Place) -> bool:
    """Whether all runs are finished, and their arms not timed yet."""
    timing = read_timing(place.output)
    if timing is not None and timing.arms.keys() == study.arms.keys():
        return False
    return all(is_finished(study, planned, place.output) for planned in runs_so_far(study, place.output))


def usual_workers(device: str) -> int:
    """How many runs at a time suit a device: small models leave most of a GPU idle, which shares it among them."""
    return max(1, min(len(os.sched_getaffinity(0)) - 2, _ON_A_GPU)) if device == "cuda" else 1


def _workers(study: Study, place: Place, threads: int | None, deadline: float | None) -> Workers:
    if place.side_by_side == 1:
        return Here(study, place, threads, deadline)
    return Processes(study, place, place.side_by_side, threads or 1)


@dataclass
class _Job:
    """One call."""

    study: Study
    place: Place
    say: Callable[[str], None]
    tally: Tally
    workers: Workers
    deadline: float | None
    signals: list[int]
    finished: Callable[[], None]
    until: Group | None = None

    def __post_init__(self) -> None:
        self.from_the_start: set[str] = set()  # the runs whose time tells what a run takes
        self._later: list[Planned] = []

    def do(self, groups: Collection[Group]) -> None:
        """The sweep if it is wanted, then the rest: what it chooses decides that."""
        runs = runs_so_far(self.study, self.place.output)
        self.pace = Pace.of_finished(self.study, runs, self.place.output)
        if "sweep" in groups:
            # which runs these will be, the sweep decides; how many, it does not
            self._later = [planned for planned in grid_runs(self.study, {}) if planned.group in groups]
            self._all(sweep_runs(self.study))
            self._later = []
            if self.tally.failures:
                return
        rest = [group for group in groups if group != "sweep"]
        if rest and self.tally.stopped is None:
            chosen = choose(self.study, self.place.output)
            for line in repeats_lines(self.study, chosen):
                self.say(line)
            planned = [run for run in grid_runs(self.study, chosen) if run.group in rest]
            swept = len(sweep_runs(self.study)) if "sweep" in groups else 0
            self.tally.total = swept + len(planned)
            self._all(planned)

    def _all(self, runs: Sequence[Planned]) -> None:
        pending = []
        for planned in runs:
            if is_finished(self.study, planned, self.place.output):
                self.tally.done += 1
                if not self.place.keep:
                    remove_checkpoints(self.place.runs / str(planned))  # a kill came before that
            else:
                pending.append(planned)
        going: list[Planned] = []
        while True:
            self._see_whether_to_stop()
            enough = self._enough([*going, *pending])
            while self.workers.free and self.tally.stopped is None and not enough:
                fits = next((planned for planned in pending if self._fits(planned)), None)
                if fits is None:
                    break
                pending.remove(fits)
                going.append(fits)
                why = why_anew(self.study, self.place, fits)
                if why or not (self.place.runs / str(fits) / "checkpoints").exists():
                    self.from_the_start.add(str(fits))
                anew = f" anew, the one before was {why}" if why else ""
                self.say(f"{fits}: started{anew} ({self.tally.done} of {self.tally.total} runs done)")
                self.workers.start(fits)
            if not self.workers.busy:
                break
            for ended in self.workers.wait(_POLL):
                going.remove(ended.planned)
                self._count(ended, [*going, *pending, *self._later])
        if pending and self.tally.stopped is None and not enough:
            self.tally.stopped = "time"

    def _see_whether_to_stop(self) -> None:
        if self.tally.stopped is None:
            if self.signals:
                self.tally.stopped = self.signals[0]
            elif self.deadline is not None and time.monotonic() >= self.deadline:
                self.tally.stopped = "time"
            if self.tally.stopped is not None and self.workers.busy:
                self.say("asking the runs that go to save and stop")
                self.workers.stop()

    def _enough(self, left: Sequence[Planned]) -> bool:
        """Whether nothing of the groups that are wanted first is left."""
        if self.until is None:
            return False
        first = GROUPS[: GROUPS.index(self.until) + 1]
        return not any(planned.group in first for planned in [*left, *self._later])

    def _fits(self, planned: Planned) -> bool:
        """Whether the run can be expected to end in time."""
        if self.deadline is None:
            return True
        left = self.deadline - time.monotonic()
        return left > (self.pace.seconds(planned.group) or 0.0)

    def _count(self, ended: Ended, left: Sequence[Planned]) -> None:
        tally, planned = self.tally, ended.planned
        if ended.score is not None:
            tally.done += 1
            if str(planned) in self.from_the_start:
                self.pace.add(planned)
            seconds = self.pace.seconds_of((run.group for run in left), self.place.side_by_side)
            until = f", about {duration(seconds)} left" if left and seconds is not None else ""
            step = diverged_at(self.place.output / str(planned))
            how = f"score {ended.score:.1%}" if step is None else f"DIVERGED in step {step}, not tried again,"
            self.say(
                f"{planned}: {how} after {duration(ended.seconds)} "
                f"({tally.done} of {tally.total} runs done{until})"
            )
            self.finished()
        elif ended.failure:
            tally.failures.append(ended)
            self.say(f"{planned}: FAILED: {ended.failure}")
        else:
            self.say(f"{planned}: stopped, to be gone on with")
            if tally.stopped is None:
                late = self.deadline is not None and time.monotonic() >= self.deadline
                asked = self.signals[0] if self.signals else int(signal.SIGTERM)
                tally.stopped = "time" if late else asked


@contextmanager
def _listening() -> Iterator[list[int]]:
    """The signals to stop that have come since; a second Ctrl-C does not wait for anything."""
    heard: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def hear(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and number in heard:
            raise KeyboardInterrupt
        heard.append(number)

    before: dict[int, Any] = {number: signal.signal(number, hear) for number in _SIGNALS}
    try:
        yield heard
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

"""The grid of a study, brought to its end from wherever it is: the sweep, then the models and ablations."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from diffclip.data.evaluation_sets import BUILT_IN, draw_built_in
from diffclip.errors import InputError, StoppedError
from diffclip.files import cores, disk_errors, lock_file
from diffclip.scenes.write import write_scenes
from diffclip.study.plan import (
    GROUPS,
    SCENES,
    Place,
    Planned,
    choose,
    entries_of,
    grid_runs,
    plan,
    seconds_of_runs,
    settings_digest,
    sweep_runs,
)
from diffclip.study.recipe import Group, Study
from diffclip.study.results import StudyFolder, describe_run
from diffclip.study.runs import read_timing
from diffclip.study.timing import time_arms
from diffclip.study.worker import Ended, Job, Worker
from diffclip.training.launch import StopRequest
from diffclip.training.logging import duration
from diffclip.training.recipe import read_recipe

_GRACE = 60.0  # seconds that a run has to save and leave
_POLL = 0.5  # seconds
_TIMING = {"cpu": 400.0, "cuda": 60.0}  # seconds for timing a step of all arms


@dataclass
class Tally:
    """The progress of a study: how many of the wanted runs are done, the failures of this call by run, and what
    stopped it before the end ("time", or the signal's number).
    """

    total: int
    done: int = 0
    failures: dict[str, Ended] = field(default_factory=dict)
    stopped: str | int | None = None


def run_study(
    study: Study,
    place: Place,
    command: Callable[[Sequence[str]], None],
    say: Callable[[str], None],
    groups: Collection[Group] = GROUPS,
    seconds: float | None = None,
) -> Tally:
    """Do the runs of `groups` that are not finished, after timing a step of every arm.

    Args:
        command: runs `diffclip WORDS`; a function at the top of a module, as other processes import it.
        say: gets a line when a run starts and when it ends.
        seconds: from now on; then runs are asked to save and stop.

    Raises:
        InputError: the folders cannot be used, or models are wanted and the sweep has not been done.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    with disk_errors(place.runs):
        place.runs.mkdir(parents=True, exist_ok=True)
    lock = lock_file(place.runs / ".lock")
    if isinstance(lock, str):
        raise InputError(f"{lock} is running a study in {place.runs}: wait for it, or choose other --runs")
    with lock:
        folder = StudyFolder(place.output)
        folder.claim(study)
        with StopRequest(place.runs) as stop:
            timing = _TIMING[place.device]
            timed = read_timing(place.output).keys() >= study.arms.keys()
            if not timed and deadline - time.monotonic() > timing:
                say("timing a training step of every arm, in turns")
                with suppress(StoppedError):  # the grid sees what was asked
                    time_arms(study, place.output, place.device, place.threads, timing)
            elif not timed:
                say("step times not measured, as the time is too short: raise --minutes")
            stop.saves = True
            return _Grid(study, place, folder, command, say, deadline, stop).do(groups)


@dataclass
class _Grid:
    """One call."""

    study: Study
    place: Place
    folder: StudyFolder
    command: Callable[[Sequence[str]], None]
    say: Callable[[str], None]
    deadline: float
    stop: StopRequest
    going: dict[Any, tuple[Planned, Worker, float]] = field(default_factory=dict)  # by connection

    def do(self, groups: Collection[Group]) -> Tally:
        """Do the sweep if it is wanted, then what it decides."""
        study, lines = self.study, self.folder.runs
        wanted = plan(study, lines, groups)[0]
        self.tally = Tally(len(wanted))
        if not self.stop.asked and not all(run.is_finished(lines) for run in wanted):
            self._draw(groups)
        sweep = sweep_runs(study) if "sweep" in groups else []
        self._all(sweep, later=[run for run in wanted if run.group != "sweep"])
        if set(groups) == {"sweep"} or self.tally.failures or self.tally.stopped is not None:
            return self.tally
        rest = [run for run in grid_runs(study, choose(study, lines)) if run.group in groups]
        self.tally.total = len(sweep) + len(rest)
        self._all(rest)
        return self.tally

    def _draw(self, groups: Collection[Group]) -> None:
        """Draw what runs would draw at the same time: the scenes to train on, and the built-in sets."""
        if self.study.scenes is not None:
            place, drawn = self.place.runs / SCENES, self.study.scenes.model_dump()
            if write_scenes(place, workers=cores(), **drawn):
                self.say(f"scenes drawn in {place}")
        if any(entry.dataset in BUILT_IN for entry in entries_of(self.study, groups)):
            draw_built_in(cores())

    def _all(self, runs: Sequence[Planned], later: Sequence[Planned] = ()) -> None:
        """Do `runs`, as many at a time as there are workers; a run whose process fails is tried twice."""
        tally, going = self.tally, self.going
        pending = [run for run in runs if not run.is_finished(self.folder.runs)]
        tally.done += len(runs) - len(pending)
        again: set[str] = set()
        kill_at = math.inf
        try:
            while True:
                if tally.stopped is None and (self.stop.asked or time.monotonic() >= self.deadline):
                    tally.stopped = self.stop.asked or "time"
                    kill_at = time.monotonic() + _GRACE
                    if going:
                        self.say("asking the running jobs to save and stop")
                    for _, worker, _ in going.values():
                        worker.process.terminate()
                if tally.stopped is None:
                    self._start_all(pending)
                if not going:
                    break
                for connection in wait(list(going), _POLL):
                    planned, worker, started = going.pop(connection)
                    ended = worker.join()
                    if tally.stopped is not None or self.stop.asked:
                        if ended.ours:  # an interrupt may end in any error; the next call tells a true one
                            ended = Ended(stopped=True)
                    elif (ended.ours or ended.stopped) and planned.name not in again:
                        again.add(planned.name)
                        pending.append(planned)
                        why = ended.failure or "stopped from outside"
                        self.say(f"{planned.name}: {why}; tried once more")
                        continue
                    left = [*pending, *(one for one, *_ in going.values()), *later]
                    self._count(planned, ended, time.monotonic() - started, left)
                if time.monotonic() > kill_at:
                    self._kill()
        finally:
            self._kill()

    def _kill(self) -> None:
        for _, worker, _ in self.going.values():
            worker.process.kill()

    def _start_all(self, pending: list[Planned]) -> None:
        """Start runs, or go on with them, until all workers have one."""
        place = self.place
        while pending and len(self.going) < place.workers:
            planned = pending.pop(0)
            run = place.runs / planned.name
            how = "goes on" if run.exists() else "started"
            if run.exists() and _is_of_others(run, planned):
                with disk_errors(run):
                    shutil.rmtree(run)
                how = "started again, as the run in its folder had other settings"
            self.say(f"{planned.name}: {how} ({self.tally.done} of {self.tally.total} runs done)")
            train, evaluate = (
                place.train_words(self.study, planned),
                place.evaluate_words(self.study, planned),
            )
            worker = Worker(
                Job(self.command, run, train, evaluate, place.device, place.threads, place.workers)
            )
            self.going[worker.connection] = planned, worker, time.monotonic()

    def _count(self, planned: Planned, ended: Ended, took: float, left: Sequence[Planned]) -> None:
        """Add a finished run to the study's folder, and tell what came of it."""
        tally, name, run = self.tally, planned.name, self.place.runs / planned.name
        if ended.stopped:
            self.say(f"{name}: stopped; the next call resumes it")
            return
        try:
            if ended.failure:
                raise InputError(ended.failure)
            line, records, curve = describe_run(run, planned, self.study)
            self.folder.add(line, records, curve)
        except InputError as error:
            tally.failures[name] = Ended(failure=str(error), ours=ended.ours)
            self.say(f"{name}: FAILED: {error} (see {run}.log)")
            return
        if not self.place.keep:
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
        tally.done += 1
        seconds = seconds_of_runs(self.folder.runs, left, self.place.workers)
        until = f", about {duration(seconds)} left" if left and seconds is not None else ""
        diverged = f"DIVERGED in step {line['diverged']}"
        how = diverged if line["score"] is None else f"score {line['score']:.1%}"
        self.say(f"{name}: {how} after {duration(took)} ({tally.done} of {tally.total} runs done{until})")


def _is_of_others(run: Path, planned: Planned) -> bool:
    """Tell whether the run's folder holds a run of other settings or data, or remains without a recipe."""
    try:
        found = read_recipe(run / "recipe.yaml")
        if planned.recipe.precision == "auto":  # a run's own recipe has what this machine made of it
            found = found.model_copy(update={"precision": "auto"})
        return settings_digest(found) != planned.digest
    except InputError:
        return True

"""Run a study, or what is left of it: first the sweep, then the models and ablations.

Each run has a process of its own (`diffclip.study.job`). A stopped run continues from its checkpoint.
"""

from __future__ import annotations

import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from diffclip.data.published_sets import BUILT_IN
from diffclip.errors import DiffCLIPError, InputError, StoppedError
from diffclip.files import cores, explain_disk_errors, hold_lock
from diffclip.names import Group
from diffclip.scenes.write import draw_built_in, write_scenes
from diffclip.study.executors import Local, Slurm
from diffclip.study.folds import write_folds
from diffclip.study.grid import Planned, choose, grid_runs, plan, seconds_of_runs, settings_digest, sweep_runs
from diffclip.study.job import Job, JobResult
from diffclip.study.results import StudyFolder, describe_run
from diffclip.study.site import SCENES, Site, entries_of
from diffclip.study.spec import Study
from diffclip.training.logging import duration
from diffclip.training.recipe import read_recipe
from diffclip.training.run_folder import is_started
from diffclip.training.stopping import StopRequest

_STOPPED = StoppedError.exit_code
_GRACE = 60.0  # seconds that a run has to save and leave
_ATTEMPTS = 2


@dataclass
class Tally:
    """The progress of a study: the numbers of wanted and finished runs, the failures of this call by run, and the
    signal that stopped the study before its end (0: none)."""

    total: int = 0
    done: int = 0
    failures: dict[str, JobResult] = field(default_factory=dict)
    signal: int = 0


def run_study(
    study: Study, site: Site, say: Callable[[str], None], groups: Collection[Group], executor: Local | Slurm
) -> Tally:
    """Do the runs of `groups` that are not finished.

    Args:
        say: gets a line when a run starts and when it ends.

    Raises:
        InputError: folders cannot be used, the sweep is neither finished nor in `groups`, or an arm always diverged.
    """
    with ExitStack() as locks:
        for path, option in ((site.output, "--output"), (site.runs, "--runs")):
            with explain_disk_errors(path):
                path.mkdir(parents=True, exist_ok=True)
            busy = f"another process is running a study in {path}: wait for it, or choose another {option}"
            locks.enter_context(hold_lock(path / ".lock", busy))
        folder = StudyFolder(site.output)
        folder.claim(study)
        if "sweep" not in groups:
            choose(study, folder.runs)  # raises if the sweep is not finished
        with StopRequest(site.runs) as stop:
            stop.saves = True
            return _Runs(study, site, folder, say, stop, executor).run_groups(groups)


@dataclass
class _Runs:
    """The runs of one call of `diffclip study`."""

    study: Study
    site: Site
    folder: StudyFolder
    say: Callable[[str], None]
    stop: StopRequest
    executor: Local | Slurm
    wanted: list[Planned] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    started: dict[str, float] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)

    def run_groups(self, groups: Collection[Group]) -> Tally:
        """Do the sweep if it is wanted, then the runs with the settings that it chose."""
        study, lines, tally = self.study, self.folder.runs, self.tally
        self.wanted = plan(study, lines, groups)[0]
        tally.total = len(self.wanted)
        if not self.stop.asked and not all(run.is_finished(lines) for run in self.wanted):
            try:
                self._draw(groups)
            except DiffCLIPError:
                if not self.stop.asked:  # a signal to the whole job ends the processes that draw
                    raise
        sweep = sweep_runs(study) if "sweep" in groups else []
        self._run_side_by_side(sweep)
        if set(groups) == {"sweep"} or tally.failures or tally.signal:
            return tally
        rest = [run for run in grid_runs(study, choose(study, lines)) if run.group in groups]
        self.wanted = [*sweep, *rest]
        self._run_side_by_side(rest)
        return tally

    def _draw(self, groups: Collection[Group]) -> None:
        """Draw the scenes to train on and the built-in sets, before several runs need them at the same time."""
        if self.study.scenes is not None:
            folder, settings = self.site.runs / SCENES, self.study.scenes.model_dump()
            if write_scenes(folder, workers=cores(), **settings):
                self.say(f"scenes drawn in {folder}")
        if self.study.folds is not None:
            write_folds(self.site.data / self.study.data, self.study.folds, self.site.folds(self.study))
        if any(entry.dataset in BUILT_IN for entry in entries_of(self.study, groups)):
            draw_built_in(cores())

    def _run_side_by_side(self, runs: Sequence[Planned]) -> None:
        """Do `runs` with the executor, until the study is asked to stop."""
        waiting = [run for run in runs if not run.is_finished(self.folder.runs)]
        self.tally.done += len(runs) - len(waiting)
        active: dict[str, tuple[Planned, Job]] = {}
        kill_time = math.inf
        try:
            while waiting or active:
                live = self.executor.live()
                for name in active.keys() - live:
                    planned, job = active.pop(name)
                    if not self._finish(planned, job.ended()):
                        waiting.insert(0, planned)
                if not self._is_stopped():
                    active |= self._start(waiting, live)
                elif not active or time.monotonic() > kill_time:
                    break
                elif kill_time == math.inf:
                    kill_time = time.monotonic() + _GRACE
                    if not self.executor.stop(kill=False):
                        self.say(f"{len(active)} jobs stay in the queue: the same command finds them")
                        break
                    self.say("asking the running jobs to save and stop")
                time.sleep(self.executor.pause)
        finally:
            self.executor.stop(kill=True)

    def _is_stopped(self) -> bool:
        """Tell whether a signal has asked the study to stop, and note it in the tally."""
        self.tally.signal = self.stop.asked
        return bool(self.tally.signal)

    def _start(self, waiting: list[Planned], live: Collection[str]) -> dict[str, tuple[Planned, Job]]:
        """Take runs from the front of `waiting` and start them, as many as the executor can. Return the runs that are
        active now; those that an earlier call started are among them."""
        taken, fresh = dict[str, tuple[Planned, Job]](), list[Job]()
        while waiting and (len(fresh) < self.executor.free() or waiting[0].name in live):
            planned = waiting.pop(0)
            job, name = self.site.job(self.study, planned), planned.name
            self.started[name] = time.monotonic()
            if name in live:
                if not job.is_written():
                    raise InputError(f"{name} is in the queue with other settings: cancel its job first")
                self.say(f"{name}: is in the queue")
            elif (ended := job.ended()) and not ended.code and is_started(job.run):
                self._finish(planned, ended)  # while no study watched
                continue
            else:
                status = "goes on" if job.run.exists() else "started"
                with explain_disk_errors(job.run):
                    if job.run.exists() and (fault := _why_not_resumed(job.run, planned)):
                        status = f"started again, as the run in its folder {fault}"
                        shutil.rmtree(job.run)
                    job.write()
                self.say(f"{name}: {status} ({self.tally.done} of {self.tally.total} runs done)")
                fresh.append(job)
            taken[name] = planned, job
        self.executor.start(fresh)
        return taken

    def _finish(self, planned: Planned, ended: JobResult | None) -> bool:
        """Add a run that has ended to the study's folder, or report its failure; return False if it must be tried once
        more, unless the input is at fault."""
        tally, name, run = self.tally, planned.name, self.site.runs / planned.name
        ended = ended or JobResult(code=1, line="its process died: was memory short?")
        self.attempts[name] += 1
        if self._is_stopped():
            if ended.code == 1:
                ended.code = _STOPPED  # a stop may cause any error; a real error comes again in the next call
        elif self.attempts[name] < _ATTEMPTS and ended.code in (1, _STOPPED):
            self.say(f"{name}: {ended.line or 'stopped from outside'}; tried once more")
            return False
        if ended.code == _STOPPED:
            self.say(f"{name}: stopped; the next call resumes it")
            return True
        try:
            if ended.code:
                raise InputError(ended.line)
            line, records, curve = describe_run(run, planned, self.study, self.site, ended)
            self.folder.add(line, records, curve)
        except InputError as error:
            tally.failures[name] = JobResult(code=ended.code or InputError.exit_code, line=str(error))
            self.say(f"{name}: FAILED: {error} (see {run}.log)")
            return True
        if not self.site.keep:
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
        tally.done += 1
        took, lines = time.monotonic() - self.started[name], self.folder.runs
        left = [job for job in self.wanted if job.name not in tally.failures and not job.is_finished(lines)]
        seconds = seconds_of_runs(lines, left, self.site.workers)
        estimate = f", about {duration(seconds)} left" if seconds else ""
        outcome = "finished" if line["score"] is None else f"score {line['score']:.1%}"
        if line["diverged"] is not None:
            outcome = f"DIVERGED in step {line['diverged']}"
        self.say(
            f"{name}: {outcome} after {duration(took)} ({tally.done} of {tally.total} runs done{estimate})"
        )
        return True


def _why_not_resumed(run: Path, planned: Planned) -> str | None:
    """Say why the run in the folder cannot go on: it has other settings or data, or no readable recipe, or no
    checkpoints. None if it can."""
    try:
        recipe = read_recipe(run / "recipe.yaml")
        if planned.recipe.precision == "auto":  # the run's own recipe has the resolved precision
            recipe = recipe.model_copy(update={"precision": "auto"})
        has_settings = settings_digest(recipe) == planned.digest
    except InputError:
        has_settings = False
    if not has_settings:
        return "had other settings"
    return None if is_started(run) else "has no checkpoints"

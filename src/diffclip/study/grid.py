"""Do all runs of a study, or those that are left: first the sweep, then the models and ablations.

Each run has a process of its own. The processes are forked from a server that has imported torch once, which saves
seconds and memory per run. They end whenever the study ends; a stopped run continues from its checkpoint.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch

from diffclip.data.published_sets import BUILT_IN
from diffclip.data.workers import block_signals
from diffclip.errors import DiffCLIPError, DivergedError, InputError, StoppedError
from diffclip.evaluation.records import RESULTS_FILE
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.run import Sets, run_entries
from diffclip.evaluation.suite import Entry
from diffclip.files import cores, explain_disk_errors, lock_file
from diffclip.scenes.write import draw_built_in, write_scenes
from diffclip.sources.load import load_with_origin
from diffclip.study.folds import write_folds
from diffclip.study.place import SCENES, Place, entries_of
from diffclip.study.plan import (
    Planned,
    choose,
    grid_runs,
    plan,
    seconds_of_runs,
    settings_digest,
    sweep_runs,
)
from diffclip.study.results import StudyFolder, describe_run, read_timing
from diffclip.study.spec import Group, Study
from diffclip.study.timing import time_arms
from diffclip.training.launch import Hardware, StopRequest, die_with_parent
from diffclip.training.logging import duration, format_error
from diffclip.training.recipe import Recipe, read_recipe
from diffclip.training.run import train
from diffclip.training.run_folder import is_started

PRELOADED = (
    *("lightning", "open_clip", "torch.utils.tensorboard"),
    *("diffclip.training.run", "diffclip.evaluation.run", "diffclip.study.grid"),
)
"""Modules that the server imports once for the processes of all runs; lightning alone takes seconds."""
# signals to a whole job, and Ctrl-C: they would end the server, and with it all runs before they are saved
_JOB_SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGUSR1}
_STOPPED = StoppedError.exit_code
_GRACE = 60.0  # seconds that a run has to save and leave
_POLL = 0.5  # seconds
_TIMING = {"cpu": 400.0, "cuda": 60.0}  # seconds for timing a step of all arms
_DRAWS = 3  # number of draws of each task that draws at random
_BATCH = 256  # images per batch of the evaluation


class Ended(NamedTuple):
    """The end of a process: the result of its work, or the exit code and message of its failure."""

    result: Any = None
    code: int = 0
    line: str = ""


class Worker:
    """Run `work(*arguments)` in a process that prints to the file `log`. `work` must be a module-level function."""

    def __init__(self, log: Path, threads: int, work: Callable[..., object], *arguments: object) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(list(PRELOADED))
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))  # read when the server imports torch
        self.connection, sender = context.Pipe(duplex=False)
        process_arguments = (sender, dict(os.environ), log, work, arguments)
        self.process = context.Process(target=_work, args=process_arguments)
        with block_signals(_JOB_SIGNALS):
            self.process.start()
        sender.close()

    def join(self) -> Ended:
        """Wait for the end of the process, and return how it ended."""
        ended: Ended | None = None
        with self.connection, suppress(EOFError, OSError):
            ended = self.connection.recv()
        self.process.join()
        reason = f"its process died (exit code {self.process.exitcode}): was memory short?"
        return ended or Ended(code=1, line=reason)


def _work(
    connection: Connection,
    environment: dict[str, str],
    log: Path,
    work: Callable[..., object],
    arguments: Sequence[object],
) -> None:
    os.environ.update(environment)
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the study asks them to stop
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _JOB_SIGNALS)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        ended = Ended(work(*arguments))
    except (StoppedError, KeyboardInterrupt):
        ended = Ended(code=_STOPPED)
    except Exception as error:
        traceback.print_exc()
        ended = Ended(code=getattr(error, "exit_code", 1), line=format_error(error))
    sys.stdout.flush()
    connection.send(ended)


def train_and_evaluate(
    recipe: Recipe, run: Path, entries: Sequence[Entry], sets: Path, device: str, threads: int
) -> dict[str, Any]:
    """Train `recipe` in the folder `run`, or resume it there, and evaluate its best checkpoint (without a validation
    split its last) with `entries`. Return
    `diverged` (the step, or None) and `suite_seconds`."""
    torch.set_num_threads(threads)
    try:
        train(recipe, run, True, Hardware(accelerator="cuda" if device == "cuda" else "cpu"))
    except DivergedError as error:
        print(error, file=sys.stderr)
        return {"diverged": error.step, "suite_seconds": None}
    if not entries:
        return {"diverged": None, "suite_seconds": None}
    loaded, seconds = load_with_origin(str(run)), 0.0
    loaded.model.to(device)
    results = ResultsFile(run / RESULTS_FILE)
    for measured in run_entries(loaded, entries, results, Sets(sets), range(_DRAWS), batch_size=_BATCH):
        if measured.error:
            raise type(measured.error)(f"{measured.entry} failed: {measured.error}")
        print(f"{measured.entry}: {measured.seconds:.1f} s", flush=True)
        # includes results that an earlier call measured
        seconds += measured.records[0].seconds or 0.0
    return {"diverged": None, "suite_seconds": round(seconds, 2)}


@dataclass
class Tally:
    """The progress of a study: the numbers of wanted and finished runs, the failures of this call by run, and whether
    the study was stopped before its end, by a signal (its number) or the end of its time."""

    total: int = 0
    done: int = 0
    failures: dict[str, Ended] = field(default_factory=dict)
    signal: int = 0
    out_of_time: bool = False


def run_study(
    study: Study,
    place: Place,
    say: Callable[[str], None],
    groups: Collection[Group],
    seconds: float | None,
) -> Tally:
    """Time a step of every arm, then do the runs of `groups` that are not finished.

    Args:
        say: gets a line when a run starts and when it ends.
        seconds: the time from now after which runs are asked to save and stop.

    Raises:
        InputError: folders cannot be used, the sweep is neither finished nor in `groups`, or an arm always diverged.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    with ExitStack() as locks:
        for path, option in ((place.output, "--output"), (place.runs, "--runs")):
            with explain_disk_errors(path):
                path.mkdir(parents=True, exist_ok=True)
            lock = lock_file(path / ".lock")
            if isinstance(lock, str):
                raise InputError(
                    f"{lock} is running a study in {path}: wait for it, or choose another {option}"
                )
            locks.enter_context(lock)
        folder = StudyFolder(place.output)
        folder.claim(study)
        if "sweep" not in groups:
            choose(study, folder.runs)  # raises if the sweep is not finished, before anything is timed
        with StopRequest(place.runs) as stop:
            timing_seconds = _TIMING[place.device]
            timed = read_timing(place.output).keys() >= study.arms.keys()
            if not timed and deadline - time.monotonic() > timing_seconds:
                say("timing a training step of every arm, in turns")
                try:
                    time_arms(study, place.output, place.device, place.threads, timing_seconds)
                except StoppedError:
                    pass  # the grid checks `stop.asked`
                except DiffCLIPError as error:
                    say(f"step times not measured: {error}")
            elif not timed:
                say("step times not measured, as the time is too short: raise --minutes")
            stop.saves = True
            return _Grid(study, place, folder, say, deadline, stop).run_groups(groups)


@dataclass
class _Grid:
    """The work of one `diffclip study`. A thread waits for each process, and holds `lock` to change shared state."""

    study: Study
    place: Place
    folder: StudyFolder
    say: Callable[[str], None]
    deadline: float
    stop: StopRequest
    workers: list[Worker] = field(default_factory=list)
    lock: Any = field(default_factory=threading.Lock)
    wanted: list[Planned] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)

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
        if set(groups) == {"sweep"} or tally.failures or tally.signal or tally.out_of_time:
            return tally
        rest = [run for run in grid_runs(study, choose(study, lines)) if run.group in groups]
        self.wanted = [*sweep, *rest]
        self._run_side_by_side(rest)
        return tally

    def _draw(self, groups: Collection[Group]) -> None:
        """Draw the scenes to train on and the built-in sets, before several runs need them at the same time."""
        if self.study.scenes is not None:
            folder, settings = self.place.runs / SCENES, self.study.scenes.model_dump()
            if write_scenes(folder, workers=cores(), **settings):
                self.say(f"scenes drawn in {folder}")
        if self.study.folds is not None:
            write_folds(self.place.data / self.study.data, self.study.folds, self.place.folds(self.study))
        if any(entry.dataset in BUILT_IN for entry in entries_of(self.study, groups)):
            draw_built_in(cores())

    def _run_side_by_side(self, runs: Sequence[Planned]) -> None:
        """Do `runs`, `place.workers` at a time, until the study is asked to stop."""
        remaining = [run for run in runs if not run.is_finished(self.folder.runs)]
        self.tally.done += len(runs) - len(remaining)
        kill_time = math.inf
        with ThreadPoolExecutor(self.place.workers) as pool:
            futures = [pool.submit(self._run_until_finished, planned) for planned in remaining]
            try:
                while wait(futures, _POLL).not_done and time.monotonic() < kill_time:
                    if self._is_stopped() and kill_time == math.inf:
                        kill_time = time.monotonic() + _GRACE
                        self.say("asking the running jobs to save and stop")
                        with self.lock:
                            for worker in self.workers:
                                worker.process.terminate()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
                for worker in list(self.workers):  # a copy, because the threads remove workers meanwhile
                    worker.process.kill()
        for future in futures:
            if not future.cancelled():
                future.result()

    def _is_stopped(self) -> bool:
        """Tell whether the study must stop, and note the reason in the tally: a signal, or the end of its time."""
        tally = self.tally
        if not tally.signal and not tally.out_of_time:
            tally.signal, tally.out_of_time = self.stop.asked, time.monotonic() >= self.deadline
        return bool(tally.signal) or tally.out_of_time

    def _run_until_finished(self, planned: Planned) -> None:
        """Do a run in a process; if the process fails, try once more, unless the input is at fault."""
        started = time.monotonic()
        for attempt in (1, 2):
            with self.lock:
                if self._is_stopped():
                    return
                worker = self._start(planned)
                self.workers.append(worker)
            ended = worker.join()
            with self.lock:
                self.workers.remove(worker)
                if self._is_stopped():
                    # a stop may cause any error; a real error comes again in the next call
                    ended = Ended(code=_STOPPED) if ended.code == 1 else ended
                elif attempt == 1 and ended.code in (1, _STOPPED):
                    self.say(f"{planned.name}: {ended.line or 'stopped from outside'}; tried once more")
                    continue
                self._count(planned, ended, time.monotonic() - started)
                return

    def _start(self, planned: Planned) -> Worker:
        """Start a run or resume it. A folder of a run with other settings, or without checkpoints, is removed first."""
        place, study, run = self.place, self.study, self.place.runs / planned.name
        status = "started"
        if run.exists() and (fault := _why_not_resumed(run, planned)):
            status = f"started again, as the run in its folder {fault}"
            with explain_disk_errors(run):
                shutil.rmtree(run)
        elif run.exists():
            status = "goes on"
        self.say(f"{planned.name}: {status} ({self.tally.done} of {self.tally.total} runs done)")
        recipe, entries = place.with_data(study, planned.recipe), place.entries(study, planned)
        work = (train_and_evaluate, recipe, run, entries, place.sets(study), place.device, place.threads)
        return Worker(run.with_name(f"{run.name}.log"), place.threads, *work)

    def _count(self, planned: Planned, ended: Ended, took: float) -> None:
        """Add a finished run to the study's folder, and report its result or failure."""
        tally, name, run = self.tally, planned.name, self.place.runs / planned.name
        if ended.code == _STOPPED:
            self.say(f"{name}: stopped; the next call resumes it")
            return
        try:
            if ended.code:
                raise InputError(ended.line)
            line, records, curve = describe_run(run, planned, self.study, self.place, ended.result)
            self.folder.add(line, records, curve)
        except InputError as error:
            tally.failures[name] = Ended(code=ended.code or InputError.exit_code, line=str(error))
            self.say(f"{name}: FAILED: {error} (see {run}.log)")
            return
        if not self.place.keep:
            shutil.rmtree(run / "checkpoints", ignore_errors=True)
        tally.done += 1
        lines = self.folder.runs
        remaining = [
            job for job in self.wanted if job.name not in tally.failures and not job.is_finished(lines)
        ]
        seconds = seconds_of_runs(lines, remaining, self.place.workers)
        estimate = f", about {duration(seconds)} left" if seconds else ""
        diverged = f"DIVERGED in step {line['diverged']}"
        outcome = "finished" if line["score"] is None else f"score {line['score']:.1%}"
        outcome = outcome if line["diverged"] is None else diverged
        self.say(
            f"{name}: {outcome} after {duration(took)} ({tally.done} of {tally.total} runs done{estimate})"
        )


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

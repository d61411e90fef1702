"""One run of a study in a process of its own: `diffclip train`, then `diffclip evaluate`.

The processes are forked from a server that has imported torch once, which saves seconds and memory per run. They end
with the study, however it ends: what a run lost is no more than `diffclip train --resume` makes again.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import resource
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path

from diffclip.errors import DivergedError, InputError, StoppedError
from diffclip.files import write_text
from diffclip.study.results import MEASURED_FILE, read_measured
from diffclip.training.launch import die_with_parent

# what both commands import; lightning alone takes seconds
_PRELOADED = (
    *("lightning", "open_clip", "torch.utils.tensorboard", "matplotlib.figure"),
    *("diffclip.training.run", "diffclip.evaluation.run"),
)
# signals to a whole job, which would end the server and with it all runs before they are saved
_OF_A_JOB = {signal.SIGTERM, signal.SIGUSR1}


@dataclass(frozen=True)
class Job:
    """The work of a process on the folder `run`: `command` runs `diffclip WORDS` with the words of `train`, then with
    those of `evaluate` (empty for none), and raises its failures.
    """

    command: Callable[[Sequence[str]], None]
    run: Path
    train: Sequence[str]
    evaluate: Sequence[str]
    device: str
    threads: int
    side_by_side: int

    def do(self, words: Sequence[str]) -> None:
        """Run a command, with a line in the log."""
        print(f"$ diffclip {shlex.join(words)}", flush=True)
        self.command(words)


@dataclass(frozen=True)
class Ended:
    """The end of a process: well, stopped, or with a failure in one line; `ours` if the input is not to blame."""

    stopped: bool = False
    failure: str = ""
    ours: bool = False


class Worker:
    """A process that does a job; `connection` can be waited for, and is ready when the process ends."""

    def __init__(self, job: Job) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([job.command.__module__, *_PRELOADED])
        os.environ.setdefault("OMP_NUM_THREADS", str(job.threads))  # read when the server imports torch
        self.connection, theirs = context.Pipe(duplex=False)
        self.process = context.Process(target=_do, args=(job, theirs, dict(os.environ)))
        resource_tracker.ensure_running()  # its start would let the signals through again
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_A_JOB)
        self.process.start()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()

    def join(self) -> Ended:
        """Wait for the end of the process, and say how it ended."""
        try:
            ended: Ended | None = self.connection.recv()
        except (EOFError, OSError):
            ended = None
        self.process.join()
        self.connection.close()
        why = f"its process died (exit code {self.process.exitcode}): was memory short?"
        return ended or Ended(failure=why, ours=True)


def _do(job: Job, connection: Connection, environment: dict[str, str]) -> None:
    """Do the job in this process, with everything that it prints in a log beside the run's folder."""
    os.environ.update(environment)
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes: the study asks them to stop
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # raises KeyboardInterrupt
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_A_JOB)
    try:
        job.run.parent.mkdir(parents=True, exist_ok=True)
        with job.run.with_name(f"{job.run.name}.log").open("ab") as log:
            os.dup2(log.fileno(), 1)
            os.dup2(log.fileno(), 2)
        _train_and_evaluate(job)
        ended = Ended()
    except (StoppedError, KeyboardInterrupt):
        ended = Ended(stopped=True)
    except Exception as error:
        traceback.print_exc()
        code = getattr(error, "exit_code", None)
        line = " ".join(f"{type(error).__name__ + ': ' if code is None else ''}{error}".split())
        ended = Ended(failure=line, ours=code != InputError.exit_code)
    sys.stdout.flush()
    connection.send(ended)


def _train_and_evaluate(job: Job) -> None:
    import torch

    from diffclip.training.run_folder import cpu_name

    torch.set_num_threads(job.threads)
    measured = read_measured(job.run)
    if measured is None:
        diverged = None
        try:
            job.do(job.train)
        except DivergedError as error:
            print(error, file=sys.stderr)
            diverged = error.step
        on_gpu = job.device == "cuda"
        unit = 1 if sys.platform == "darwin" else 1024  # of what the system tells
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
        measured = {
            "diverged": diverged,
            "peak_memory": torch.cuda.max_memory_allocated() if on_gpu else resident,
            "device": torch.cuda.get_device_name() if on_gpu else cpu_name() or platform.machine(),
            "threads": job.threads,
            "side_by_side": job.side_by_side,
        }
        write_text(job.run / MEASURED_FILE, json.dumps(measured))
    if job.evaluate and measured["diverged"] is None and "suite_seconds" not in measured:
        started = time.monotonic()
        job.do(job.evaluate)
        measured["suite_seconds"] = round(time.monotonic() - started, 2)
        write_text(job.run / MEASURED_FILE, json.dumps(measured))

"""Who does the runs: this process, or long-lived processes, each of which takes the next run when it is done."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from multiprocessing.process import BaseProcess
from typing import Any, Protocol

import torch

from diffclip.study.attempt import Ended, attempt, interrupts_ask_to_stop
from diffclip.study.one import Place, Work
from diffclip.study.plan import Planned
from diffclip.study.recipe import Study

_GRACE = 30.0
"""Seconds that a run has to save and leave; its checkpoint before stays in any case."""
_SIGNAL_OF_DEAD_PARENT = 1  # PR_SET_PDEATHSIG of sys/prctl.h


class Workers(Protocol):
    """What does runs. `free` and `busy` count those that could start one and those that are at one."""

    @property
    def free(self) -> int: ...
    @property
    def busy(self) -> int: ...

    def start(self, planned: Planned) -> None:
        """Give a run to one who is free."""

    def wait(self, seconds: float) -> list[Ended]:
        """The runs that have ended, as soon as there is one, or none after some seconds."""

    def stop(self) -> None:
        """Ask all runs to stop; they still have to be waited for."""

    def close(self) -> None:
        """End the workers, busy or not."""


class Here:
    """Does runs in this process, in `wait`, which returns when the run has ended."""

    def __init__(self, study: Study, place: Place, threads: int | None, deadline: float | None) -> None:
        self._work = Work(study, place)
        self._deadline, self._runs = deadline, False
        self._next: Planned | None = None
        self._threads, self._before = threads, torch.get_num_threads()

    @property
    def free(self) -> int:
        return 1 - self.busy

    @property
    def busy(self) -> int:
        return int(self._next is not None)

    def start(self, planned: Planned) -> None:
        self._next = planned

    def wait(self, seconds: float) -> list[Ended]:
        planned, self._next = self._next, None
        if planned is None:
            return []
        torch.set_num_threads(self._threads or self._before)
        with interrupts_ask_to_stop(), self._until_the_deadline():
            return [attempt(self._work, planned)]

    def stop(self) -> None:
        self._next = None

    def close(self) -> None:
        torch.set_num_threads(self._before)

    @contextmanager
    def _until_the_deadline(self) -> Iterator[None]:
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        timer = None if left is None else threading.Timer(left, self._ask)
        self._runs = True
        if timer is not None:
            timer.start()
        try:
            yield
        finally:
            self._runs = False
            if timer is not None:
                timer.cancel()

    def _ask(self) -> None:
        if self._runs:
            os.kill(os.getpid(), signal.SIGTERM)


class Processes:
    """Does runs in up to `number` processes, which are started when they are needed and live until `close`."""

    def __init__(self, study: Study, place: Place, number: int, threads: int) -> None:
        self._arguments, self._number, self._threads = (study, place, threads), number, threads
        self._workers: list[_Worker] = []
        self._stopping: float | None = None

    @property
    def free(self) -> int:
        return self._number - self.busy

    @property
    def busy(self) -> int:
        return sum(worker.planned is not None for worker in self._workers)

    def start(self, planned: Planned) -> None:
        idle = next((worker for worker in self._workers if worker.planned is None), None)
        if idle is None:
            idle = _Worker(self._arguments, self._threads)
            self._workers.append(idle)
        idle.take(planned)

    def wait(self, seconds: float) -> list[Ended]:
        busy = {worker.connection: worker for worker in self._workers if worker.planned is not None}
        ended = []
        for connection in wait_for(list(busy), seconds):
            worker = busy[connection]  # type: ignore[index]
            ended.append(worker.ended())
            if worker.gone:
                self._workers.remove(worker)
                worker.leave()
        if self._stopping is not None and time.monotonic() > self._stopping:
            self._end_all()
        return ended

    def stop(self) -> None:
        self._stopping = time.monotonic() + _GRACE
        for worker in self._workers:
            worker.stop()

    def close(self) -> None:
        for worker in self._workers:
            worker.process.kill()  # all of them before one is waited for
        for worker in self._workers:
            worker.leave()
        self._workers = []

    def _end_all(self) -> None:
        for worker in self._workers:
            worker.process.kill()


class _Worker:
    """A process, the pipe to it, and the run that it is at."""

    def __init__(self, arguments: tuple[Study, Place, int], threads: int) -> None:
        # forking a process that holds threads (torch's) can deadlock
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=_serve, args=(theirs, os.getpid(), *arguments))
        with _for_children(threads):
            self.process.start()
        theirs.close()
        self.planned: Planned | None = None
        self.gone, self._asked = False, False

    def take(self, planned: Planned) -> None:
        self.planned, self._since = planned, time.monotonic()
        with suppress(OSError):  # it has died meanwhile: told when it is waited for
            self.connection.send(planned)

    def stop(self) -> None:
        """Ask its run to stop."""
        self._asked = True
        self.process.terminate()

    def leave(self) -> None:
        """See the process off, which has nothing more to say; a GPU may keep it from ending by itself."""
        self.process.kill()
        self.process.join()
        self.connection.close()

    def ended(self) -> Ended:
        """How the run ended, to be asked when the connection has something to say."""
        assert self.planned is not None
        planned, self.planned = self.planned, None
        try:
            answer: Ended = self.connection.recv()
            self.gone = answer.ours
            return answer
        except (EOFError, OSError):
            self.gone = True
        self.process.join()
        seconds, code = time.monotonic() - self._since, self.process.exitcode
        if self._asked:  # between two runs, or it took too long to save
            return Ended(planned, seconds)
        why = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return Ended(planned, seconds, failure=f"its process died ({why}): was memory short?", ours=True)


def _serve(connection: Connection, parent: int, study: Study, place: Place, threads: int) -> None:
    """The life of a worker process: runs come through `connection`, and what came of them goes back."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_OF_DEAD_PARENT, signal.SIGTERM)
    if os.getppid() != parent:
        return
    torch.set_num_threads(threads)
    work = Work(study, place)
    # the first process may be gone by then
    with suppress(EOFError, OSError):
        while True:
            ended = attempt(work, connection.recv())
            connection.send(ended)
            if ended.ours:  # after an error of the GPU nothing runs there in this process
                return


@contextmanager
def _for_children(threads: int) -> Iterator[None]:
    """What a process that is started within inherits: how many threads it computes on, in all libraries, unless the
    user has said; and that Ctrl-C, which reaches all processes, is for the first one to pass on."""
    name = "OMP_NUM_THREADS"
    before, main = os.environ.get(name), threading.current_thread() is threading.main_thread()
    interrupt: Any = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
    os.environ.setdefault(name, str(threads))
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        if main:
            signal.signal(signal.SIGINT, interrupt)

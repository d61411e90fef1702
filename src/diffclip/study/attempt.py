"""A run as a worker does it: it ends in some way, and never takes its worker with it.

It is asked to stop by SIGTERM, as `diffclip train` is: a training saves its state, and a suite has kept what it
finished.
"""

from __future__ import annotations

import signal
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from diffclip.errors import DiffCLIPError, StoppedError
from diffclip.study.one import Work
from diffclip.study.plan import Planned


@dataclass(frozen=True)
class Ended:
    """How a run ended: with its best `score`, or a `failure` in one line (`ours`: it was no bad input), or neither, as
    it was asked to stop."""

    planned: Planned
    seconds: float
    score: float | None = None
    failure: str = ""
    ours: bool = False

    @property
    def stopped(self) -> bool:
        """Whether it was asked to stop."""
        return self.score is None and not self.failure


def attempt(work: Work, planned: Planned) -> Ended:
    """Do a run, and tell how it ended; a fault of ours leaves its traceback on stderr."""
    started = time.monotonic()
    failure, ours, score = "", False, None
    try:
        with _stoppable():
            score = work.do(planned)
    except (StoppedError, KeyboardInterrupt):
        pass
    except DiffCLIPError as error:
        failure, ours = _line(error), error.exit_code != 2
    except torch.OutOfMemoryError as error:
        failure, ours = f"out of memory, let fewer --workers train at a time ({_line(error)})", True
    except Exception as error:
        traceback.print_exc()
        failure, ours = f"{type(error).__name__}: {_line(error)}", True
    return Ended(planned, time.monotonic() - started, score, failure, ours)


@contextmanager
def interrupts_ask_to_stop() -> Iterator[None]:
    """Within, Ctrl-C is SIGTERM too, besides what it was."""
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def both(number: int, frame: FrameType | None) -> None:
        before(number, frame)
        signal.raise_signal(signal.SIGTERM)

    signal.signal(signal.SIGINT, both)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Within, SIGTERM is an interrupt, where nothing that it happens to has a better answer."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before: Any = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__

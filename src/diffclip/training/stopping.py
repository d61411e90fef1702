"""How signals and a lost parent process end a run. Nothing here imports torch, so that signals are handled early."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from diffclip.errors import StoppedError

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Signals that ask a run to save and stop: Ctrl-C, the usual one, and SLURM's `--signal=USR1@300`."""
LAUNCHED_BY = "DIFFCLIP_LAUNCHED_BY"
"""The environment variable with the id of the process that started this one with `launch`."""
NOTHING_TO_SAVE = "stopped by a signal, with nothing to save: run the command again with --resume"
_SIGNAL_OF_DEAD_PARENT = 1  # PR_SET_PDEATHSIG of sys/prctl.h


@contextmanager
def exit_on_signals() -> Iterator[None]:
    """Exit with code 75 at a signal to stop, while there is nothing to save: during imports, or after the last step.

    The exit is immediate, because an exception could be caught by a library that is being imported.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        if LAUNCHED_BY not in os.environ:  # else the launcher process prints a line
            os.write(2, f"diffclip: {NOTHING_TO_SAVE}\n".encode())
        os._exit(StoppedError.exit_code)

    before = {number: signal.signal(number, leave) for number in STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def die_with_parent() -> None:
    """On Linux, have this process killed when its parent process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SIGNAL_OF_DEAD_PARENT, signal.SIGKILL)


class StopRequest:
    """Turn SIGTERM, SIGUSR1 (SLURM's `--signal`) and Ctrl-C into a request to save and stop, within a `with` block.

    A signal sets `asked` to its number, which the loop checks between two steps. Until `saves` is set, the signal also
    raises `StoppedError`. Ctrl-C after an earlier signal raises `KeyboardInterrupt`. Outside the main thread, where
    Python handles no signals, `asked` stays 0.
    """

    def __init__(self, run: Path) -> None:
        self.asked, self.saves, self._run = 0, False, run
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in STOP_SIGNALS}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.asked:
            raise KeyboardInterrupt
        # set first: code that reads an image or a file may take the error below for damage
        self.asked = self.asked or number
        if not self.saves:
            raise StoppedError(f"{self._run}: {NOTHING_TO_SAVE}")

"""What asks a run to stop: SIGTERM (a scheduler, `torchrun`, `kill`) and SIGUSR1 (SLURM's `--signal`)."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from diffclip.errors import StoppedError

_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """While it is entered, a signal to stop raises `StoppedError`, or, once `saves` is set, sets `asked` for the loop
    to see after its step. Outside the main thread, where Python handles no signals, nothing is ever asked."""

    def __init__(self, run: Path) -> None:
        self.asked, self.saves, self._run = False, False, run
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._ask) for number in _SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if not self.saves:
            raise StoppedError(f"{self._run}: asked to stop before its first step: start it again")
        self.asked = True

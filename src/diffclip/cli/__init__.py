"""The command line. Python imports this file first, so settings that torch reads while it loads are made here."""

import os
import signal
import sys
from types import FrameType

# Threads that wait sleep: beside another busy program a training step takes a quarter to three fifths of the time of
# spinning ones, and alone about as long (docs/performance.md). Processes that are started from here take it over.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _stop_early(number: int, frame: FrameType | None) -> None:
    """End a training that has nothing to save yet, or nothing more, as the training loop does: with exit code 75."""
    if "DIFFCLIP_LAUNCHED_BY" not in os.environ:  # else the process that launched this one says it
        os.write(2, b"diffclip: asked to stop outside of the steps: run the command again with --resume\n")
    os._exit(75)


_words = [word for word in sys.argv[1:4] if word != "--"]
if (_words[:1] == ["train"] or _words[:2] == ["vlm", "train"]) and "--dry-run" not in sys.argv:
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(_number, _stop_early)

"""The command line. Python imports this file first, so settings that torch reads while it loads are made here."""

import os
import signal
import sys
from types import FrameType

# Waiting threads sleep instead of spinning. Beside another busy program a training step then takes 10 to 60 % of the
# time, and alone at most 5 % more (docs/performance.md). Processes that are started from here inherit this setting.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _stop_early(number: int, frame: FrameType | None) -> None:
    """Exit with code 75, as the training loop does, if a signal comes before or after it, with nothing to save."""
    if "DIFFCLIP_LAUNCHED_BY" not in os.environ:  # else the launcher process prints a line
        os.write(2, b"diffclip: asked to stop outside of the steps: run the command again with --resume\n")
    os._exit(75)


_words = [word for word in sys.argv[1:4] if word != "--"]
if (_words[:1] == ["train"] or _words[:2] == ["vlm", "train"]) and "--dry-run" not in sys.argv:
    for _number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
        signal.signal(_number, _stop_early)

"""The processes that the first one of a node starts itself (`--devices`), and the watch over them.

Lightning's own starter kills the first process within five seconds of another's end, often before it can say why.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import torch
from lightning.fabric.plugins.environments import LightningEnvironment

from diffclip.errors import InputError
from diffclip.training.distributed import STARTED_BY

# a first process that talks to the one which ended is told so at once; NCCL may wait for half an hour
_PATIENCE = 120.0


class OwnProcesses(LightningEnvironment):  # type: ignore[misc]  # Lightning is checked as Any
    """Lightning's environment for processes that it need not start."""

    @property
    def creates_processes_externally(self) -> bool:
        return True


def start_others(environment: LightningEnvironment, devices: int) -> None:
    """Run this program's own command again in `devices - 1` processes, which meet this one, and watch them.

    Raises:
        InputError: there is no such command, as in an interactive session.
    """
    if hasattr(sys, "ps1") or sys.argv[0] in ("", "-"):
        raise InputError(
            f"{devices} processes run one script, or `diffclip train`, together: an interactive session has one device"
        )
    meeting = {"MASTER_ADDR": environment.main_address, "MASTER_PORT": str(environment.main_port)}
    threads = os.environ.get("OMP_NUM_THREADS")
    if threads is None:
        threads = str(max(1, torch.get_num_threads() // devices))
        torch.set_num_threads(int(threads))
    own = os.environ | meeting | {STARTED_BY: str(os.getpid()), "OMP_NUM_THREADS": threads}
    others = [
        subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env=own | {"LOCAL_RANK": str(rank)})
        for rank in range(1, devices)
    ]
    threading.Thread(target=_watch, args=(others,), daemon=True, name="watch").start()


def _watch(others: Sequence[subprocess.Popen[bytes]]) -> None:
    """End this process, long after one of the others has ended badly, if it has not found that out itself."""
    while True:
        codes = [other.poll() for other in others]
        if all(code == 0 for code in codes):
            return
        if any(codes):
            break
        time.sleep(0.5)
    time.sleep(_PATIENCE)
    rank, code = next((rank, code) for rank, code in enumerate(codes, 1) if code)
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    sys.stderr.write(
        f"diffclip: process {rank} of {len(others) + 1} {how}, and the others wait for it: go on with --resume\n"
    )
    sys.stderr.flush()
    os._exit(1)  # what waits for a process that is gone cannot be interrupted

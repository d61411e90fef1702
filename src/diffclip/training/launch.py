"""The processes of a run, one per device: how many, who starts them, and how a signal or a failure ends them.

`diffclip train --devices N` starts N processes and watches them, with the functions that `torchrun` is built on.
`torchrun` and SLURM's `srun` start the processes themselves and set environment variables that say so.
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Literal

import torch

from diffclip.errors import DiffCLIPError, InputError, StoppedError

LAUNCHED_BY = "DIFFCLIP_LAUNCHED_BY"
"""The environment variable with the id of the process that started this one with `launch`."""
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_STOP_SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
# seconds that processes have to save after a signal to stop
_SAVE_SECONDS = 300
_SIGNAL_OF_DEAD_PARENT = 1  # PR_SET_PDEATHSIG of sys/prctl.h


@dataclass(frozen=True)
class Hardware:
    """The devices of a run. Another number of devices changes only the order of sums, except with a window of shards
    (`data.window`, remote shards), broken samples, drop path, patch dropout or `gather_with_grad=false`.

    `devices` is per node; "auto" means all GPUs, or one process on a CPU. For several processes, the strategy "auto"
    means "ddp" (a whole model in each process). "fsdp" shards weights, gradients and the optimizer's state.
    """

    devices: int | Literal["auto"] = 1
    nodes: int = 1
    strategy: Literal["auto", "ddp", "fsdp"] = "auto"
    accelerator: Literal["auto", "cuda", "cpu"] = "auto"

    def resolved(self) -> Hardware:
        """Resolve the devices, nodes and accelerator; under `torchrun` and `srun` the environment gives the numbers.
        Numbers that contradict the environment, too few GPUs, or nodes without an address raise `InputError`."""
        cuda = torch.cuda.is_available() and self.accelerator != "cpu"
        if self.accelerator == "cuda" and not cuda:
            raise InputError("torch sees no GPU: leave --accelerator out, or give --accelerator cpu")
        started = launched_sizes()
        if started is None:
            devices = self.devices if self.devices != "auto" else (torch.cuda.device_count() if cuda else 1)
            nodes = self.nodes
            if nodes > 1 and not {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"} <= os.environ.keys():
                raise InputError(
                    f"{nodes} nodes meet at the address of the first: set MASTER_ADDR to it and MASTER_PORT to a free "
                    "port on every node, and NODE_RANK to the node's number from 0"
                )
        else:
            devices, nodes = started
            if self.devices not in ("auto", 1, devices) or self.nodes not in (1, nodes):
                raise InputError(
                    f"--devices {self.devices} --nodes {self.nodes} contradicts the {devices} processes on each of "
                    f"{nodes} nodes that were started: leave --devices and --nodes out under torchrun and srun"
                )
        if cuda and devices > torch.cuda.device_count():
            raise InputError(
                f"{devices} processes per node need {devices} GPUs, and torch sees {torch.cuda.device_count()}: lower "
                "--devices, or give each process all GPUs of its node"
            )
        return Hardware(devices, nodes, self.strategy, "cuda" if cuda else "cpu")

    @property
    def world(self) -> int:
        """The number of processes in all; `devices` must be resolved."""
        return int(self.devices) * self.nodes


def launched_sizes() -> tuple[int, int] | None:
    """Return (processes per node, nodes) if `torchrun`, `srun` or `launch` started this process, else None."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        return devices, int(os.environ["WORLD_SIZE"]) // devices
    interactive = os.environ.get("SLURM_JOB_NAME") in ("bash", "interactive")
    tasks = int(os.environ.get("SLURM_NTASKS", "1"))
    # a single task may be a batch script without `srun` that has all GPUs of its job
    if "SLURM_PROCID" in os.environ and tasks > 1 and not interactive:
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        return tasks // nodes, nodes
    return None


def launch(hardware: Hardware) -> None:
    """Run this program's own command in one process per device of this node, and wait for all processes.

    A signal to stop is passed on to all processes, which then have five minutes to save. If one process fails, the
    others are ended, and its line and exit code are raised as `DiffCLIPError`.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, start_processes

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    # its handlers raise at any point, and a second signal would cut the saving short
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = ""
    ranks = range(int(hardware.devices))
    with TemporaryDirectory(prefix="diffclip-") as folder, StopRequest(Path(folder)) as stop:
        stop.saves = True
        context = start_processes(
            "train",
            sys.executable,
            args={rank: tuple(sys.orig_argv[1:]) for rank in ranks},
            envs={rank: _environment(hardware, rank) for rank in ranks},
            logs_specs=DefaultLogsSpecs(folder),
        )
        while (result := context.wait(timeout=0.2, period=0.2)) is None and not stop.asked:
            pass
        if result is None:
            context.close(signal.Signals(stop.asked), timeout=_SAVE_SECONDS)
            result = context.wait(0)
    if result is None or not result.failures:
        return
    first = min(result.failures.values(), key=lambda failure: failure.timestamp)
    line = first.error_file_data.get("line")
    code = first.exitcode
    ending = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    error = DiffCLIPError(line or f"process {first.local_rank} of {len(ranks)} {ending}: go on with --resume")
    error.exit_code = max(1, code)
    raise error


def _environment(hardware: Hardware, rank: int) -> dict[str, str]:
    """The variables of `torchrun` for process `rank` of this node."""
    from torch.distributed.elastic.utils.distributed import get_free_port

    devices, node = int(hardware.devices), int(os.environ.get("NODE_RANK", "0"))
    threads = os.environ.get("OMP_NUM_THREADS") or max(1, torch.get_num_threads() // devices)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")  # the process inherits it
    os.environ.setdefault("MASTER_PORT", str(get_free_port()))  # type: ignore[no-untyped-call]
    variables = {
        "RANK": node * devices + rank,
        "LOCAL_RANK": rank,
        "GROUP_RANK": node,
        "WORLD_SIZE": hardware.world,
        "LOCAL_WORLD_SIZE": devices,
        "OMP_NUM_THREADS": threads,
        "TORCHELASTIC_RUN_ID": "diffclip",
        LAUNCHED_BY: os.getpid(),
    }
    return {name: str(value) for name, value in variables.items()}


def pass_last_line(line: str, lost: bool = False) -> None:
    """Pass the last line of this process to the process that launched it, if there is one.

    `lost` means that another process failed first: a later timestamp makes `launch` show that process's line.
    """
    if LAUNCHED_BY not in os.environ or _ERROR_FILE not in os.environ:
        return
    file = Path(os.environ[_ERROR_FILE])
    if not file.exists():
        word = {"message": line, "line": line, "timestamp": time.time() + (3600 if lost else 0)}
        file.write_text(json.dumps(word), encoding="utf-8")


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
            self._before = {number: signal.signal(number, self._ask) for number in _STOP_SIGNALS}
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
            raise StoppedError(
                f"{self._run}: asked to stop before its first step: run the command again with --resume"
            )

"""The processes of a run, one per device: how many, and who starts them.

`diffclip train --devices N` starts N processes with the functions that `torchrun` is built on. `torchrun` and SLURM's
`srun` start the processes themselves and set environment variables that say so.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any, Literal

import torch

from diffclip.errors import DiffCLIPError, DivergedError, InputError, StoppedError
from diffclip.training.stopping import LAUNCHED_BY, NOTHING_TO_SAVE, STOP_SIGNALS

_MEETING = {"MASTER_ADDR", "MASTER_PORT", "NODE_RANK"}
_SAVE_SECONDS = 300  # that processes have to save after a signal to stop


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
        if started is None and self.nodes > 1 and not os.environ.keys() >= _MEETING:
            raise InputError(
                f"{self.nodes} nodes meet at the address of the first: set MASTER_ADDR to it and MASTER_PORT to a free "
                "port on every node, and NODE_RANK to the node's number from 0"
            )
        own = self.devices if self.devices != "auto" else torch.cuda.device_count() if cuda else 1
        devices, nodes = started or (own, self.nodes)
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


def launch(hardware: Hardware, max_restarts: int = 0) -> None:
    """Run this program's own command in one process per device of this node, as `torchrun` does, and wait for the end.

    A signal to stop is passed on to all processes, which then have five minutes to save. If one process fails, the
    others are ended. If it was killed or ended with code 1, but did not diverge, all are started again from the last
    checkpoint, up to `max_restarts` times. The line and exit code of the process that failed first are raised as
    `DiffCLIPError`.
    """
    threads = max(1, torch.get_num_threads() // int(hardware.devices))
    defaults = {"OMP_NUM_THREADS": str(threads), "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": str(_SAVE_SECONDS)}
    os.environ |= defaults | os.environ
    logging.disable(logging.ERROR)  # torch would repeat the line in a table
    command = sys.orig_argv[1:]
    for attempt in range(max_restarts + 1):
        failure = _run_processes(hardware, command, attempt)
        if failure is None:
            return
        is_final = failure.exit_code in (InputError.exit_code, StoppedError.exit_code)
        if attempt == max_restarts or is_final or isinstance(failure, DivergedError):
            raise failure
        print(f"diffclip: {failure}; restart {attempt + 1} of {max_restarts}", file=sys.stderr)
        command = command if "--resume" in command else [*command, "--resume"]


def _run_processes(hardware: Hardware, command: list[str], attempt: int) -> DiffCLIPError | None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.elastic.utils.distributed import get_free_port
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    asked: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        asked.append(number)
        if len(asked) == 1:  # a second signal must not cut the saving short
            raise SignalException("asked to stop", signal.Signals(number))

    address = os.environ.get("MASTER_ADDR", "127.0.0.1")
    # another port for each attempt, because the store of the last one may still be open
    port = attempt + int(os.environ.get("MASTER_PORT") or get_free_port())  # type: ignore[no-untyped-call]
    with TemporaryDirectory(prefix="diffclip-") as folder:
        config = LaunchConfig(
            min_nodes=hardware.nodes,
            max_nodes=hardware.nodes,
            nproc_per_node=int(hardware.devices),
            run_id="diffclip",  # the same on all nodes
            rdzv_backend="static",
            rdzv_endpoint=f"{address}:{port}",
            rdzv_configs={"rank": int(os.environ.get("NODE_RANK", "0"))},
            max_restarts=0,  # torch would also restart after bad input and after a saved stop
            logs_specs=DefaultLogsSpecs(folder),
            signals_to_handle="",  # torch's handlers would raise again at a second signal
        )
        for name in STOP_SIGNALS:
            signal.signal(name, stop)
        os.environ[LAUNCHED_BY] = str(os.getpid())  # inherited by the processes
        try:
            elastic_launch(config, sys.executable)(*command)
        except SignalException:
            return _first_failure(Path(folder), [], hardware)
        except ChildFailedError as error:
            return _first_failure(Path(folder), list(error.failures.values()), hardware)
        finally:
            del os.environ[LAUNCHED_BY]
    return None


def _first_failure(folder: Path, failures: list[Any], hardware: Hardware) -> DiffCLIPError:
    """Return the error of the process that failed first: from the lines that processes left below `folder`, and torch's
    `failures`. A process that lost contact, or that torch ended (SIGTERM), has failed because of another one."""
    files = sorted(folder.rglob("error.json"), key=lambda file: file.stat().st_mtime_ns)
    words = [json.loads(file.read_text("utf-8")) for file in files]
    silent = [x for x in failures if "line" not in x.error_file_data and x.exitcode != -signal.SIGTERM]
    first = next((word for word in words if not word["lost"]), None)
    if first is None and silent:
        rank, code = silent[0].local_rank, silent[0].exitcode
        ending = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
        node = f" on node {os.environ['NODE_RANK']}" if hardware.nodes > 1 else ""
        line = f"process {rank} of {hardware.devices}{node} {ending}: go on with --resume"
        first = {"line": line, "code": code}
    elif first is None and words:
        first = words[0]
    if first is None:
        return StoppedError(NOTHING_TO_SAVE)
    error = (DivergedError if first.get("diverged") else DiffCLIPError)(first["line"])
    error.exit_code = max(1, first["code"])
    return error


def pass_last_line(line: str, code: int, lost: bool = False, diverged: bool = False) -> None:
    """Pass the last line and the exit code of this process to the process that launched it, if there is one. `lost`
    means that another process failed first, whose line matters more; `diverged`, that a restart would fail again."""
    file = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if LAUNCHED_BY in os.environ and file and not Path(file).exists():
        word = {"message": line, "line": line, "code": code, "lost": lost, "diverged": diverged}
        Path(file).write_text(json.dumps(word), encoding="utf-8")

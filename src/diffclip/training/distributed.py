"""Train one model in several processes with Lightning Fabric, and keep the processes in agreement.

Every process runs the same loop over `agreed_batches`. In each step all processes have the same number of samples, all
stop after the same step, and an error in the data of one process is raised in all.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from diffclip.errors import DiffCLIPError, RankError
from diffclip.training.launch import Hardware, pass_last_line
from diffclip.training.optimizer import is_share, small_parameters
from diffclip.training.stopping import StopRequest

if TYPE_CHECKING:
    from lightning.fabric import Fabric

    from diffclip.data.loader import Batch
    from diffclip.model import CLIP

Value = TypeVar("Value")
Failure = DiffCLIPError | OSError
# instead of a number of samples
_ENDED, _FAILED = -1, -2
_PROBE_SECONDS = 3.0


def make_fabric(hardware: Hardware, precision: str, timeout: float = 1800.0) -> Fabric:
    """Make a Fabric for resolved `hardware`, not launched yet; `precision` is "fp32" or "bf16". A process waits
    `timeout` seconds for the others."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy

    for name in ("lightning.fabric", "lightning.pytorch"):  # their messages repeat the recipe
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", "The `srun` command is available on your system but is not used")
    torch.backends.cudnn.allow_tf32 = False  # fp32 is true float32, also in the patch convolution
    if "SLURM_NTASKS" in os.environ:  # Lightning refuses `srun --ntasks`, which does not set this
        os.environ.setdefault("SLURM_NTASKS_PER_NODE", str(hardware.devices))
    options: dict[str, Any] = {
        # numbers and objects are exchanged between CPUs, so that no GPU has to be waited for
        "process_group_backend": "cpu:gloo,cuda:nccl" if hardware.accelerator == "cuda" else "gloo",
        "timeout": timedelta(seconds=timeout),
    }
    strategy: str | Strategy = "auto"
    if hardware.strategy == "fsdp":
        # by default, the strategy would have one data-parallel process per node
        options |= {"data_parallel_size": hardware.world, "tensor_parallel_size": 1}
        strategy = ModelParallelStrategy(lambda model, mesh: shard(model, mesh["data_parallel"]), **options)
    elif hardware.world > 1:
        strategy = DDPStrategy(gradient_as_bucket_view=True, **options)
    return Fabric(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.nodes,
        strategy=strategy,
        precision="bf16-mixed" if precision == "bf16" else "32-true",
    )


def native_precision(precision: str, accelerator: str) -> str:
    """Resolve `auto` to "bf16" if the hardware multiplies bfloat16 natively, else to "fp32"."""
    return precision if precision != "auto" else "bf16" if has_bf16(accelerator) else "fp32"


def has_bf16(accelerator: str) -> bool:
    """Tell whether the hardware multiplies bfloat16 natively.

    On a CPU with AVX512 alone, bf16 takes twice the time of float32; with AVX2, 10 to 13 times (docs/performance.md).
    """
    if accelerator == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    facts = Path("/proc/cpuinfo")
    flags = facts.read_text(encoding="utf-8", errors="replace").split("\n\n")[0] if facts.is_file() else ""
    return not {"amx_bf16", "avx512_bf16", "bf16"}.isdisjoint(flags.split())


def blocks_of(model: CLIP) -> list[nn.Module]:
    """List the blocks of both towers; each block is compiled, sharded and recomputed on its own."""
    return [*model.visual.blocks, *model.transformer.resblocks]


def shard(model: CLIP, mesh: Any) -> CLIP:
    """Shard the parameters of `model` over the processes of `mesh`, block by block (FSDP2). Small parameters stay whole
    in each process."""
    from torch.distributed.fsdp import fully_shard

    small = set(small_parameters(model))
    for part in (*blocks_of(model), model):
        fully_shard(part, mesh=mesh, ignored_params=small)
    for parameter in small:
        parameter.data = parameter.data.to(mesh.device_type)
    return model


def average_small(fabric: Any, model: nn.Module) -> None:
    """Average over processes the gradients of the small parameters, which FSDP ignores; without FSDP, do nothing."""
    if fabric.world_size == 1 or not any(map(is_share, model.parameters())):
        return
    if grads := [parameter.grad for parameter in small_parameters(model) if parameter.grad is not None]:
        flat_grads = torch.cat([grad.flatten() for grad in grads])
        torch.distributed.all_reduce(flat_grads)
        nn.utils.vector_to_parameters(flat_grads / fabric.world_size, grads)


def clip_gradients(fabric: Any, model: nn.Module, max_norm: float | None) -> Tensor:
    """Scale all gradients together so that their norm is at most `max_norm`; return the norm (0-dim) before scaling.

    Every process has the gradients of the whole batch (FSDP: its shard, and the small ones, averaged here).
    """
    average_small(fabric, model)
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    kinds: list[Any] = [[grad for grad in grads if is_share(grad) is sharded] for sharded in (False, True)]
    parts: list[Any] = [nn.utils.get_total_norm(kind) for kind in kinds if kind]
    norms = [part.full_tensor() if is_share(part) else part for part in parts]
    norm: Tensor = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if max_norm is not None:
        factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
        for grad in grads:
            grad.mul_(factor)
    return norm


def agreed_batches(
    fabric: Any, batches: Iterator[Batch], stop: StopRequest
) -> Iterator[tuple[Batch, float, bool]]:
    """Yield each batch on the device, as (batch, seconds waited for data, whether any process is asked to stop).

    One batch is read ahead: while the step before it computes, the CPUs exchange its size and the request to stop, and
    its tensors go to the GPU. If one process skipped broken samples, the others drop as many, so that all have the same
    number. An error in the data of one process is raised in all.
    """
    copies: torch.cuda.Stream | None = None
    if fabric.device.type == "cuda":
        copies = torch.cuda.Stream(fabric.device)  # type: ignore[no-untyped-call]
    launched, waited = deque[torch.cuda.Event](), 0.0

    def read() -> tuple[Batch | None, Failure | None, np.ndarray[Any, Any], Any]:
        nonlocal waited
        batch: Batch | None = None
        failure: Failure | None = None
        exchange: Any = None
        started = time.perf_counter()
        try:
            batch = next(batches, None)
        except (DiffCLIPError, OSError) as error:
            failure = error
        waited += time.perf_counter() - started
        samples = _FAILED if failure else _ENDED if batch is None else len(batch)
        status = np.array([samples, -int(bool(stop.asked))])
        if fabric.world_size > 1:
            least = torch.distributed.ReduceOp.MIN
            exchange = torch.distributed.all_reduce(torch.from_numpy(status), least, async_op=True)
        if batch is not None:
            with torch.cuda.stream(copies):
                batch = batch.to(fabric.device)
        return batch, failure, status, exchange

    ahead = read()
    while True:
        batch, failure, status, exchange = ahead
        if exchange is not None:
            exchange.wait()
        samples, asked_to_stop = int(status[0]), bool(status[1] < 0)
        if samples == _FAILED:
            with shared_errors(fabric):
                if failure is not None:
                    raise failure
        if samples < 0 or batch is None:
            return
        if copies is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(copies)
            for tensor in (batch.images, batch.tokens):
                tensor.record_stream(current)
            # wait for the step before the last, or the batches of many queued steps would fill the memory
            launched.append(current.record_event())
            if len(launched) > 1:
                launched.popleft().synchronize()
        ahead = read()
        # in one process, a request counts at once
        yield batch.first(samples), waited, asked_to_stop or (exchange is None and bool(stop.asked))
        waited = 0.0


def mean_over_processes(fabric: Any, numbers: Sequence[float]) -> list[float]:
    """Return the mean over processes of each number. The CPUs exchange them; no GPU waits."""
    values = np.array(numbers, dtype=np.float64)
    if fabric.world_size > 1:
        torch.distributed.all_reduce(torch.from_numpy(values))
    return [float(value) for value in values / fabric.world_size]


def gather(fabric: Any, value: Value) -> list[Value]:
    """Gather `value` from every process, ordered by rank."""
    if fabric.world_size == 1:
        return [value]
    values: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(values, value)
    return values


@contextmanager
def shared_errors(fabric: Any) -> Iterator[None]:
    """Raise the error (`Failure`) of a block in all processes: that of the first process whose block fails. Every
    process must run the block, which may do nothing in some of them."""
    failure: Failure | None = None
    try:
        yield
    except (DiffCLIPError, OSError) as error:
        failure = error
    for first_failure in gather(fabric, failure):
        if first_failure is not None:
            raise first_failure from None


@contextmanager
def explain_lost_processes(fabric: Any) -> Iterator[None]:
    """Turn the error of an exchange with a lost process into a `DiffCLIPError` of one line."""
    try:
        yield
    except RuntimeError as error:
        if fabric.world_size == 1 or not (isinstance(error, torch.distributed.DistError) or _has_lost_peer()):
            raise
        line = (
            f"process {fabric.global_rank} of {fabric.world_size} lost contact with another process, which was "
            "killed or ran out of memory: read that process's last message, and go on with --resume"
        )
        pass_last_line(line, DiffCLIPError.exit_code, lost=True)
        raise RankError(line) from None


def _has_lost_peer() -> bool:
    """Try one more exchange between the CPUs, which fails at once if another process has ended. (The errors of gloo
    have no type of their own.) Processes that live keep it waiting."""
    started = time.monotonic()
    try:
        exchange: Any = torch.distributed.all_reduce(torch.zeros(1), async_op=True)
        while not exchange.is_completed():
            if time.monotonic() - started > _PROBE_SECONDS:
                return False
            time.sleep(0.01)
        exchange.wait()
    except RuntimeError:
        return True
    return False

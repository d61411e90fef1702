"""Processes: how many, how they share the model, and what they must agree on. Lightning Fabric does the work.

One process a device. They are started by this program (`--devices`), by `torchrun`, or by SLURM's `srun`; the last two
say so in the environment.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from diffclip.errors import DiffCLIPError, InputError, unknown
from diffclip.model import CLIP
from diffclip.training.optimiser import small_parameters

if TYPE_CHECKING:
    from lightning.fabric import Fabric

STRATEGIES, ACCELERATORS = ("auto", "ddp", "fsdp"), ("auto", "cuda", "cpu")
# PR_SET_PDEATHSIG of sys/prctl.h
_SIGNAL_OF_DEAD_PARENT = 1
# holds the process that starts the others of its node
STARTED_BY = "DIFFCLIP_STARTED_BY"


@dataclass(frozen=True)
class Hardware:
    """Where a run runs. It changes none of its numbers, but for the order of sums.

    `devices` a node; "auto" takes all GPUs, or one process on a CPU. "auto" as the strategy is "ddp" (a copy of the
    model a process) where there are several processes; "fsdp" shares weights, gradients and the optimiser's state out.
    """

    devices: int | Literal["auto"] = 1
    nodes: int = 1
    strategy: str = "auto"
    accelerator: str = "auto"

    def resolved(self) -> Hardware:
        """With numbers: from the environment where `torchrun` or `srun` has started the processes.

        Raises:
            InputError: unknown strategy, no such accelerator, or fewer GPUs than asked for.
        """
        if self.strategy not in STRATEGIES:
            raise InputError(f"unknown strategy {self.strategy!r}: choose from: {', '.join(STRATEGIES)}")
        if self.accelerator not in ACCELERATORS:
            raise unknown("accelerator", self.accelerator, ACCELERATORS)
        if self.nodes > 1 and started_outside() is None and "MASTER_ADDR" not in os.environ:
            raise InputError(
                f"{self.nodes} nodes meet at the address of the first: set MASTER_ADDR to it and MASTER_PORT to a free "
                "port on every node, and NODE_RANK to the node's number from 0"
            )
        cuda = torch.cuda.is_available() and self.accelerator != "cpu"
        if self.accelerator == "cuda" and not cuda:
            raise InputError("there is no usable GPU: leave the accelerator out, or take accelerator cpu")
        outside = started_outside()
        if outside is not None:
            devices, nodes = outside
            if self.devices not in ("auto", 1, devices) or self.nodes not in (1, nodes):
                raise InputError(
                    f"{self.devices} devices on {self.nodes} nodes are asked for, and {devices} processes on each of "
                    f"{nodes} nodes were started: leave --devices and --nodes out under torchrun and srun"
                )
        else:
            devices = self.devices if self.devices != "auto" else (torch.cuda.device_count() if cuda else 1)
            nodes = self.nodes
        if devices < 1 or nodes < 1:
            raise InputError(f"{devices} devices on {nodes} nodes: both must be at least 1")
        if cuda and devices > torch.cuda.device_count():
            way_out = "lower --devices" if outside is None else "give each process all GPUs of its node"
            raise InputError(
                f"{devices} processes a node need as many GPUs, and {torch.cuda.device_count()} are seen: {way_out}"
            )
        return Hardware(devices, nodes, self.strategy, "cuda" if cuda else "cpu")

    @property
    def world(self) -> int:
        """How many processes there are in all; `devices` must be resolved."""
        return int(self.devices) * self.nodes

    def rank(self) -> int:
        """Which of all processes this one is, known before they meet."""
        for name in ("RANK", "SLURM_PROCID"):
            if started_outside() is not None and name in os.environ:
                return int(os.environ[name])
        return int(os.environ.get("NODE_RANK", "0")) * int(self.devices) + local_rank()


def started_outside() -> tuple[int, int] | None:
    """(processes a node, nodes) where `torchrun` or `srun` has started this process."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        devices = int(os.environ["LOCAL_WORLD_SIZE"])
        return devices, int(os.environ["WORLD_SIZE"]) // devices
    if {"SLURM_PROCID", "SLURM_NTASKS"} <= os.environ.keys() and os.environ.get("SLURM_JOB_NAME") not in (
        "bash",
        "interactive",
    ):
        nodes = int(os.environ.get("SLURM_NNODES", "1"))
        return int(os.environ["SLURM_NTASKS"]) // nodes, nodes
    return None


def local_rank() -> int:
    """Which of its node's processes this one is, known before they meet."""
    return int(os.environ.get("LOCAL_RANK") or os.environ.get("SLURM_LOCALID") or 0)


def started_by_us() -> bool:
    """Whether another process of this program, on this machine, has started this one."""
    return STARTED_BY in os.environ and local_rank() > 0


def is_alone() -> bool:
    """Whether no other process waits for this one yet: it is the first of its node and starts the others itself, and
    there is no other node."""
    return not local_rank() and started_outside() is None and "NODE_RANK" not in os.environ


def make_fabric(hardware: Hardware, precision: str) -> Fabric:
    """Fabric for resolved `hardware`, not launched yet."""
    from lightning.fabric import Fabric
    from lightning.fabric.strategies import DDPStrategy, ModelParallelStrategy, Strategy

    from diffclip.training.processes import OwnProcesses

    for name in ("lightning.fabric", "lightning.pytorch"):  # they announce what the recipe says
        logging.getLogger(name).setLevel(logging.WARNING)
    strategy: str | Strategy = "auto"
    if hardware.strategy == "fsdp":
        # its automatic mesh would take one data-parallel process a node
        strategy = ModelParallelStrategy(
            lambda model, mesh: shard(model, mesh["data_parallel"]),
            data_parallel_size=hardware.world,
            tensor_parallel_size=1,
        )
    elif hardware.world > 1:
        strategy = DDPStrategy(gradient_as_bucket_view=True)
    return Fabric(
        accelerator=hardware.accelerator,
        devices=hardware.devices,
        num_nodes=hardware.nodes,
        strategy=strategy,
        plugins=OwnProcesses() if hardware.world > 1 and started_outside() is None else None,
        precision="bf16-mixed" if precision == "bf16" else "32-true",
    )


def launch(fabric: Fabric, hardware: Hardware) -> None:
    """Start the other processes of this node, unless something outside has, and meet those of all nodes.

    Raises:
        InputError: there is no command that the others could run.
        DiffCLIPError: the process that started this one is gone.
    """
    from diffclip.training.processes import start_others

    if started_by_us() and sys.platform == "linux":
        # the first process may end at any moment, and the exchange with it would then wait for half an hour
        ctypes.CDLL(None).prctl(_SIGNAL_OF_DEAD_PARENT, signal.SIGKILL)
        if os.getppid() != int(os.environ[STARTED_BY]):
            raise DiffCLIPError("the process that started this one is gone")
    elif started_outside() is None and not local_rank() and int(hardware.devices) > 1:
        strategy: Any = fabric.strategy
        start_others(strategy.cluster_environment, int(hardware.devices))
    fabric.launch()


def blocks_of(model: CLIP) -> list[nn.Module]:
    """The blocks of both towers, which are compiled, sharded and computed again one by one."""
    return [*model.visual.blocks, *model.transformer.resblocks]


def compile_blocks(model: CLIP) -> None:
    """Have each block compiled when it first runs."""
    for block in blocks_of(model):
        block.compile()


def shard(model: CLIP, mesh: Any) -> CLIP:
    """Share the parameters of `model` out over the processes of `mesh`, block by block (FSDP2), but for the small ones:
    those stay whole in each process."""
    from torch.distributed.fsdp import fully_shard

    small = set(small_parameters(model))
    for part in (*blocks_of(model), model):
        fully_shard(part, mesh=mesh, ignored_params=small)
    for parameter in small:
        parameter.data = parameter.data.to(mesh.device_type)
    return model


def is_sharded(model: nn.Module) -> bool:
    """Whether `shard` has been here."""
    return any(hasattr(parameter, "full_tensor") for parameter in model.parameters())


def average_small(fabric: Any, model: nn.Module) -> None:
    """The mean over processes of the gradients that sharding leaves alone; nothing to do for a model that is whole."""
    if fabric.world_size == 1 or not is_sharded(model):
        return
    grads = [parameter.grad for parameter in small_parameters(model) if parameter.grad is not None]
    together = torch.cat([grad.flatten() for grad in grads])
    torch.distributed.all_reduce(together)
    together /= fabric.world_size
    for grad, mean in zip(grads, torch.split(together, [grad.numel() for grad in grads]), strict=True):
        grad.copy_(mean.view_as(grad))


def clip_gradients(model: nn.Module, most: float | None) -> Tensor:
    """The norm (0-dim) of all gradients together, which are then scaled down to `most` if that is less."""
    grads = [p.grad for p in model.parameters() if p.grad is not None]
    whole = [grad for grad in grads if not hasattr(grad, "full_tensor")]
    sharded = [grad for grad in grads if hasattr(grad, "full_tensor")]
    norm = torch.nn.utils.get_total_norm(whole)
    if sharded:
        of_sharded: Any = torch.nn.utils.get_total_norm(sharded)
        norm = torch.linalg.vector_norm(torch.stack([norm, of_sharded.full_tensor()]))
    if most is not None:
        factor = torch.clamp(most / (norm + 1e-6), max=1.0)
        for grad in grads:
            grad.mul_(factor)
    return norm


@contextmanager
def whole_model(model: nn.Module) -> Iterator[None]:
    """All parameters of a sharded model in every process for a while, so that each may compute what it likes."""
    from torch.distributed.fsdp import FSDPModule

    parts = [module for module in model.modules() if isinstance(module, FSDPModule)]
    for part in parts:
        part.unshard()
        part.set_reshard_after_forward(False, recurse=False)
    try:
        yield
    finally:
        for part in parts:
            # as `fully_shard` has it: the root keeps its own for the backward pass
            part.set_reshard_after_forward(part is not model, recurse=False)
            part.reshard()

"""The plan of a run before anything is held: parameters, operations, memory, steps, hours and cost.

Hours are operations over the GPU's rate times an assumed utilisation; they leave out validation and checkpoints, and
suppose that pictures come fast enough.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from diffclip.config import name_of
from diffclip.errors import InputError
from diffclip.training.distributed import STRATEGIES
from diffclip.training.flops import Flops, count_flops
from diffclip.training.gpus import GIB, GPU, find_gpu
from diffclip.training.memory import (
    CONTEXT,
    SLACK,
    input_memory,
    loss_memory,
    measure_pass,
    state_memory,
)
from diffclip.training.recipe import Recipe
from diffclip.training.weightless import parameters_by_part, weightless

# Share of a GPU's rate for dense matrices that a whole training step reaches: an assumption, not measured. The paper's
# 10 GPU days for CC12M on A100s (Section 5.2) are 0.14, OpenCLIP's ViT-B/16 on 344 A100s 0.15 (390 samples a second
# and GPU, table of arXiv:2212.07143), both from before fused attention and compilation, taken here to double them.
UTILISATION = 0.3


@dataclass(frozen=True)
class Schedule:
    """Steps and samples. `dropped` is what an epoch leaves out because it does not fill a batch."""

    samples_per_epoch: int
    dropped: int
    steps_per_epoch: int
    epochs: int
    steps: int
    samples: int
    warmup_steps: int


@dataclass(frozen=True)
class OnGPU:
    """What a run takes on `gpu`; hours and cost (US dollars) are None where the number of samples is not known.

    `largest_micro_batch` is the most samples a pass that fit, 0 if not one does; `advice` says what to change, if
    anything.
    """

    gpu: GPU
    utilisation: float
    fits: bool
    largest_micro_batch: int
    advice: str | None
    samples_per_second: float
    hours: float | None
    gpu_hours: float | None
    price: float
    cost: float | None


@dataclass(frozen=True)
class Plan:
    """A planned run. Memory is in bytes for one process, operations are for one sample.

    `share` is a process's part of the batch, `pass_size` the samples of it that it computes at a time.
    """

    model: str
    parameters: dict[str, int]
    flops: Flops
    devices: int
    nodes: int
    strategy: str
    precision: str
    batch_size: int
    share: int
    pass_size: int
    memory: dict[str, int]
    schedule: Schedule | None
    on_gpu: OnGPU | None

    @property
    def world(self) -> int:
        """Processes, one a GPU."""
        return self.devices * self.nodes

    @property
    def passes(self) -> int:
        """Forward and backward passes of a process in a step."""
        return -(-self.share // self.pass_size)

    def as_json(self) -> dict[str, Any]:
        """The plan with its sums, as plain numbers and names."""
        plan = asdict(self)
        plan["parameters"]["total"] = sum(self.parameters.values())
        plan["memory"]["total"] = sum(self.memory.values())
        plan["flops"] |= {"forward": self.flops.forward, "training": self.flops.training}
        return plan | {"world": self.world, "passes": self.passes}


def plan_run(
    recipe: Recipe,
    devices: int = 1,
    nodes: int = 1,
    strategy: str = "auto",
    gpu: str | None = None,
    price: float | None = None,
    samples: int | None = None,
    utilisation: float = UTILISATION,
) -> Plan:
    """The plan of `recipe` on `nodes` nodes of `devices` GPUs each.

    Args:
        strategy: "ddp", "fsdp", or "auto" for DDP where there are several processes.
        gpu: a name in `gpus.GPUS`; None leaves out hours, cost and whether it fits.
        price: dollars for an hour of one GPU; None: a typical one.
        samples: samples that an epoch shows; None: the recipe's `data.expected_samples`.
        utilisation: share of the GPU's rate for dense matrices that training reaches.

    Raises:
        InputError: unknown GPU or strategy, numbers that make no sense, a batch that does not divide by the processes,
            or an epoch that has no batch.
    """
    world = _check_world(recipe, devices, nodes, strategy)
    if not 0 < utilisation <= 1:
        raise InputError(f"utilisation {utilisation} must be a share: above 0, at most 1")
    if price is not None and price < 0:
        raise InputError(f"price {price} must not be negative")
    card = find_gpu(gpu) if gpu is not None else None
    config = recipe.config()
    sharded = strategy == "fsdp" and world > 1
    share = recipe.batch_size // world
    pass_size = min(recipe.micro_batch or share, share)
    needs = _Needs(recipe, world, sharded)
    flops = count_flops(config, recipe.batch_size, recipe.grad_checkpointing, pass_size < share)
    schedule = _schedule(recipe, samples if samples is not None else recipe.data.expected_samples)
    with weightless(config, recipe.attention_backend) as model:
        parameters = parameters_by_part(model)
    return Plan(
        model=name_of(config),
        parameters=parameters,
        flops=flops,
        devices=devices,
        nodes=nodes,
        strategy="one process" if world == 1 else "fsdp" if sharded else "ddp",
        precision=recipe.precision,
        batch_size=recipe.batch_size,
        share=share,
        pass_size=pass_size,
        memory=needs.memory(pass_size),
        schedule=schedule,
        on_gpu=_on_gpu(card, needs, flops, schedule, pass_size, price, utilisation) if card else None,
    )


class _Needs:
    """Memory of one process by the size of a pass."""

    def __init__(self, recipe: Recipe, world: int, sharded: bool) -> None:
        self.recipe, self.config, self.world, self.sharded = recipe, recipe.config(), world, sharded
        self.share = recipe.batch_size // world
        self._loss = loss_memory(recipe.loss, self.share, world, self.config.embed_dim)

    def memory(self, size: int) -> dict[str, int]:
        """Bytes by part; the parts add up. Their worst moments do not quite meet, so the sum is on the safe side."""
        of_pass = measure_pass(self.recipe, size)
        state = state_memory(self.config, self.world, self.sharded, size < self.share)
        parts = {
            "weights": state.weights,
            "gradients": state.gradients,
            "optimiser": state.optimiser,
            "gathered weights": state.gathered,
            "weights in bfloat16": of_pass.copies,
            "activations": of_pass.activations,
            "backward pass": of_pass.working,
            "features, all processes": self._loss[0],
            "logits": self._loss[1],
            "input batch": input_memory(self.config, self.share, size),
        }
        moving = sum(parts.values()) - state.weights - state.gradients - state.optimiser
        return parts | {"allocator's slack": int(SLACK * moving), "CUDA and libraries": CONTEXT}

    def largest(self, most: int, known: int) -> int:
        """The largest pass that fits into `most` bytes, 0 if one sample does not; `known` is where the search starts.

        In as few passes as possible, and of equal size where that takes at most twice as many.
        """
        parts = self.memory(known)
        a_sample = parts["activations"] / known
        room = most - (sum(parts.values()) - parts["activations"])
        passes = max(1, int(self.share * a_sample / room)) if room > 0 else self.share
        while passes <= self.share:
            size = -(-self.share // passes)
            if sum(self.memory(size).values()) <= most:
                even = next((n for n in range(passes, 2 * passes + 1) if self.share % n == 0), passes)
                return -(-self.share // even)
            passes = max(passes + 1, -(-self.share // size))
        return 0


def _check_world(recipe: Recipe, devices: int, nodes: int, strategy: str) -> int:
    if strategy not in STRATEGIES:
        raise InputError(f"unknown strategy {strategy!r}: choose from: {', '.join(STRATEGIES)}")
    if devices < 1 or nodes < 1:
        raise InputError(f"{devices} devices on {nodes} nodes: both must be at least 1")
    world = devices * nodes
    if recipe.batch_size % world:
        raise InputError(
            f"batch_size {recipe.batch_size} does not divide by {world} processes: change one of them"
        )
    return world


def _schedule(recipe: Recipe, samples: int | None) -> Schedule | None:
    if samples is None:
        return None
    steps, dropped = divmod(samples, recipe.batch_size)
    if not steps:
        raise InputError(f"{samples} samples are fewer than batch_size {recipe.batch_size}: lower it")
    return Schedule(
        samples_per_epoch=samples,
        dropped=dropped,
        steps_per_epoch=steps,
        epochs=recipe.epochs,
        steps=steps * recipe.epochs,
        samples=steps * recipe.epochs * recipe.batch_size,
        warmup_steps=round(recipe.warmup_epochs * steps),
    )


def _on_gpu(
    gpu: GPU,
    needs: _Needs,
    flops: Flops,
    schedule: Schedule | None,
    pass_size: int,
    price: float | None,
    utilisation: float,
) -> OnGPU:
    rate = gpu.tflops(needs.recipe.precision) * 1e12 * utilisation * needs.world / flops.training
    hours = schedule.samples / rate / 3600 if schedule else None
    gpu_hours = hours * needs.world if hours is not None else None
    price = gpu.price if price is None else price
    fits = sum(needs.memory(pass_size).values()) <= gpu.memory
    largest = needs.largest(gpu.memory, pass_size)
    return OnGPU(
        gpu=gpu,
        utilisation=utilisation,
        fits=fits,
        largest_micro_batch=largest,
        advice=_advise(gpu, needs, pass_size, fits, largest),
        samples_per_second=rate,
        hours=hours,
        gpu_hours=gpu_hours,
        price=price,
        cost=gpu_hours * price if gpu_hours is not None else None,
    )


def _advise(gpu: GPU, needs: _Needs, pass_size: int, fits: bool, largest: int) -> str | None:
    """What to change in the recipe or the command, or None where it is good as it is."""
    if not fits and largest:
        return f"does not fit into {gpu.memory / GIB:.0f} GiB: micro_batch={largest} does"
    if not fits:
        parts = needs.memory(1)
        part = max(parts, key=lambda name: parts[name])
        ways = [] if needs.recipe.grad_checkpointing else ["grad_checkpointing=true"]
        ways += ["--strategy fsdp"] if needs.world > 1 and not needs.sharded else []
        ways += ["a smaller batch_size", "more or larger GPUs"]
        return (
            f"does not fit into {gpu.memory / GIB:.0f} GiB even with micro_batch=1, where the largest part is "
            f"{part}, {parts[part] / GIB:.1f} GiB: try {', '.join(ways)}"
        )
    if pass_size < needs.share == largest:
        return "the whole share of the batch fits at once: micro_batch=null saves a forward pass"
    if pass_size < largest:
        return f"micro_batch={largest} fits as well, in fewer passes"
    return None

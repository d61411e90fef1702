"""The plan of a run (`diffclip train --dry-run`): parameters, operations, memory and time, before memory is allocated.

Parameters, operations and the memory of a pass are counted on a model without weights (torch's fake tensors). It has
only shapes and types, so counting takes seconds for any size of model and batch. The time of a step is measured on
this machine (step_time.py), or for a named GPU estimated: operations / (the GPU's rate × an assumed utilization).
Validation and checkpoints are left out, and images are assumed to arrive fast enough.
"""

from __future__ import annotations

import functools
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from diffclip.config import CLIPConfig, name_of
from diffclip.errors import InputError, unknown_name
from diffclip.model import CLIP
from diffclip.training.about import cpu_name
from diffclip.training.distributed import blocks_of, native_precision
from diffclip.training.optimizer import freeze
from diffclip.training.recipe import Recipe
from diffclip.training.step_time import measure_rate

GIB = 2**30
# Share of a GPU's rate for dense matrices that a whole training step reaches: an assumption, not measured. It is 0.14
# in the paper (10 GPU days for CC12M on A100s, Section 5.2), and 0.15 for OpenCLIP's ViT-B/16 on 344 A100s (390 samples
# per second and GPU, table of arXiv:2212.07143). Fused attention and compilation came later; assume they double it.
UTILIZATION = 0.3
# The width of these models. For each number that it reads, a product with a w × w matrix makes w operations: the less,
# the more a GPU waits for its memory.
_FULL_WIDTH = 768
# CUDA's context, the workspaces of its libraries, NCCL's buffers: an assumption, 0.7 to 1.5 GiB in practice
_CONTEXT = int(1.25 * GIB)
# assumed factor for memory that torch's allocator holds but cannot use, on tensors that live within a step
_SLACK = 1.05
_FLOAT, _TOKEN = 4, 8
# peak bytes of the loss for each pair of a sample of the process and a text of the batch (tests/training)
_LOGIT = {"clip": 16, "siglip": 20}


class GPU(NamedTuple):
    """Memory as the driver reports it, and the maker's rates for dense matrices, in 10¹² operations per second."""

    memory_gib: float
    bf16: float
    fp32: float  # torch's default: no TF32


GPUS = {
    "h200": GPU(140.4, 989, 67),
    "h100": GPU(79.6, 989, 67),
    "a100-80gb": GPU(79.3, 312, 19.5),
    "a100-40gb": GPU(39.4, 312, 19.5),
    "l40s": GPU(44.4, 362, 91.6),
    "l4": GPU(22.0, 121, 30.3),
    "rtx4090": GPU(23.5, 165, 82.6),
}


RunPlan = dict[str, Any]
"""The facts of a planned run by name. Memory is in bytes for one process, operations are for one sample.

`share` is the number of samples of a batch in one process, `pass_size` those in one forward pass. Steps, samples and
hours are None if the number of samples is not known. `advice` says what to change if the run does not fit.
"""


def plan_run(
    recipe: Recipe,
    world: int = 1,
    strategy: str = "auto",
    gpu: str | None = "a100-80gb",
    samples: int | None = None,
) -> RunPlan:
    """Plan `recipe` on `world` GPUs of one kind, or on this machine.

    Args:
        strategy: "ddp", "fsdp", or "auto" for DDP if there are several processes.
        gpu: a name in `GPUS`; None: this machine's GPU or CPU, with the time of ten steps.
        samples: samples per epoch; None: the recipe's `data.expected_samples`.

    Raises:
        InputError: unknown GPU, a batch that the processes cannot share equally, or an epoch without a whole batch.
    """
    if gpu is not None and gpu not in GPUS:
        raise unknown_name("gpu", gpu, GPUS)
    if recipe.batch_size % world:
        raise InputError(
            f"batch_size {recipe.batch_size} does not divide by {world} processes: change one of them"
        )
    samples = samples if samples is not None else recipe.data.expected_samples
    steps_per_epoch = samples // recipe.batch_size if samples is not None else None
    if steps_per_epoch == 0:
        raise InputError(f"{samples} samples are fewer than batch_size {recipe.batch_size}: lower it")
    device = torch.device("cuda" if gpu or torch.cuda.is_available() else "cpu")
    if recipe.precision == "auto":
        precision = "bf16" if gpu else native_precision("auto", device.type)
        recipe = recipe.model_copy(update={"precision": precision})
    sharded, share, config = world > 1 and strategy == "fsdp", recipe.batch_size // world, recipe.config()
    pass_size = min(recipe.micro_batch or share, share)
    model = (config.model_dump_json(), recipe.attention_backend, recipe.grad_checkpointing)
    counts = _count(*model, recipe.precision, tuple(recipe.freeze))
    forward = counts.vision + counts.text
    flops = _with_total(
        {
            "vision tower, forward": counts.vision,
            "text tower, forward": counts.text,
            "backward": counts.backward,
            # GradCache computes the features of all parts before the parts
            "features first, for batches in parts": forward if pass_size < share else 0,
            # logits in both directions, and both gradients of each product
            "loss": 3 * 2 * 2 * config.embed_dim * recipe.batch_size,
        }
    )
    name, tflops, utilization = gpu, None, None
    if gpu is not None:
        tflops, room = getattr(GPUS[gpu], recipe.precision), GPUS[gpu].memory_gib * GIB
        utilization = UTILIZATION * min(1, config.vision.width / _FULL_WIDTH)
        rate = tflops * 1e12 * utilization * world / flops["total"]
    elif device.type == "cuda":
        name, room = torch.cuda.get_device_name(device), torch.cuda.get_device_properties(device).total_memory
        rate = measure_rate(recipe, device, share) * world
    else:  # the processes of a CPU share it
        name, room = cpu_name(), os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        rate = measure_rate(recipe, device, share)
    steps = steps_per_epoch * recipe.epochs if steps_per_epoch else None

    def memory_of(pass_size: int) -> dict[str, int]:
        return _memory(recipe, counts, world, sharded, pass_size, device)

    memory, advice = memory_of(pass_size), None
    if memory["total"] > room:
        sizes = dict.fromkeys(-(-share // passes) for passes in range(1, share + 1))
        largest = next((size for size in sizes if memory_of(size)["total"] <= room), None)
        way_out = "try grad_checkpointing=true, --strategy fsdp, a smaller batch_size, or more or larger GPUs"
        advice = f"does not fit into {room / GIB:.0f} GiB: " + (
            f"micro_batch={largest} does" if largest else way_out
        )
    return {
        "model": name_of(config),
        "precision": recipe.precision,
        "strategy": "one process" if world == 1 else "fsdp" if sharded else "ddp",
        "world": world,
        "batch_size": recipe.batch_size,
        "share": share,
        "pass_size": pass_size,
        "parameters": _with_total(counts.parameters),
        "flops": flops,
        "memory": memory,
        "samples_per_epoch": samples,
        "steps_per_epoch": steps_per_epoch,
        "steps": steps,
        "gpu": gpu,
        "device": name,
        "room": room,
        "utilization": utilization,
        "tflops": tflops,
        "fits": advice is None,
        "advice": advice,
        "samples_per_second": rate,
        "hours": steps * recipe.batch_size / rate / 3600 if steps else None,
    }


def _with_total(parts: dict[str, int]) -> dict[str, int]:
    return parts | {"total": sum(parts.values())}


class _Counts(NamedTuple):
    """The counts of a model: parameters by part, trained, of the largest block, outside of blocks (`rest`); operations
    per sample; bytes of a forward and backward pass, constant and per sample."""

    parameters: dict[str, int]
    trained: int
    block: int
    rest: int
    vision: int
    text: int
    backward: int
    constant: int
    per_sample: int


@functools.cache
def _count(
    config_json: str, backend: str, grad_checkpointing: bool, precision: str, frozen: tuple[str, ...]
) -> _Counts:
    config, samples = CLIPConfig.model_validate_json(config_json), 2
    # "eager", so that every entry of every map counts
    with model_without_weights(config, "eager", grad_checkpointing, frozen) as model:
        images, tokens = make_batch(config, samples)  # not one sample, which some operations treat apart
        with FlopCounterMode(display=False) as vision:
            features = model.encode_image(images).sum()
        with FlopCounterMode(display=False) as text:
            features = features + model.encode_text(tokens).sum()
        with FlopCounterMode(display=False) as backward:
            features.backward()  # type: ignore[no-untyped-call]
    flops = [counter.get_total_flops() // samples for counter in (vision, text, backward)]
    parts = parameters_by_part(model)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    blocks = [sum(p.numel() for p in block.parameters()) for block in blocks_of(model)]

    if backend in ("auto", "triton"):
        # the fused kernel keeps as much as fused plain attention, plus three numbers per row (0.1 % of ViT-B/16)
        for tower in (config.vision, config.text):
            tower.attention = tower.layer.planned_as or tower.attention
        backend = "sdpa"
    small, large = 32, 64
    with model_without_weights(config, backend, grad_checkpointing, frozen) as model:
        small_peak, large_peak = (
            peak_of_pass(model, *make_batch(config, n), precision) for n in (small, large)
        )
    per_sample = (large_peak - small_peak) // (large - small)
    constant, rest = max(0, small_peak - small * per_sample), sum(parts.values()) - sum(blocks)
    return _Counts(parts, trained, max(blocks), rest, flops[0], flops[1], flops[2], constant, per_sample)


def _memory(
    recipe: Recipe, counts: _Counts, world: int, sharded: bool, pass_size: int, device: torch.device
) -> dict[str, int]:
    """Estimate the bytes of one process by part, in passes of `pass_size` samples; a compiled model takes less.

    The parts do not all peak at the same moment, so their sum is on the safe side. `sharded` means FSDP: each process
    has its share of the weights, and gathers a block to compute with it, and the next block meanwhile. Weights outside
    the blocks, above all the token embedding, stay gathered through the step.
    """
    config, share = recipe.config(), recipe.batch_size // world
    whole, trained = sum(counts.parameters.values()), counts.trained
    local, local_trained = (-(-n // world) if sharded else n for n in (whole, trained))
    gathered = (2 if recipe.loss == "clip" else 1) * share * world if world > 1 else 0
    image, text = 3 * config.vision.image_size**2, config.text.context_length
    transient = {
        # two blocks' weights and one block's gradients; weights and gradients of the rest
        "gathered weights": _FLOAT * (3 * counts.block + 2 * counts.rest) if sharded else 0,
        "forward and backward pass": counts.constant + pass_size * counts.per_sample,
        "features, all processes": 2 * _FLOAT * config.embed_dim * (2 * share + gathered),
        "logits": _LOGIT[recipe.loss] * share * share * world,
        # beside the step's own, the batches of the step before and of the next
        "input batch": 3 * share * (image + _TOKEN * text) + pass_size * image * _FLOAT,
    }
    persistent = {
        "weights": _FLOAT * local,
        "gradients": _FLOAT * (trained if pass_size < share else local_trained),
        "optimizer": 2 * _FLOAT * local_trained,
        "CUDA and libraries": _CONTEXT if device.type == "cuda" else 0,
    }
    return _with_total(persistent | {part: int(_SLACK * size) for part, size in transient.items()})


@contextmanager
def model_without_weights(
    config: CLIPConfig,
    attention_backend: str = "sdpa",
    grad_checkpointing: bool = False,
    frozen: Iterable[str] = (),
) -> Iterator[CLIP]:
    """Make the model of `config` in training mode without values (torch's fake tensors). Tensors that are made within
    the context have no values either.

    `grad_checkpointing` recomputes blocks in the backward pass; the parts `frozen` are not trained.
    """
    with torch.device("meta"):
        model = CLIP(config, attention_backend=attention_backend, seed=0).train()
    model.set_grad_checkpointing(grad_checkpointing)
    freeze(model, frozen)
    # fake CPU tensors, because autocast for other devices needs their hardware
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield model.to_empty(device="cpu")


def make_batch(config: CLIPConfig, samples: int) -> tuple[Tensor, Tensor]:
    """Make normalized images [samples, 3, S, S] and tokens [samples, L] of the sizes that training has."""
    size = config.vision.image_size
    tokens = torch.zeros(samples, config.text.context_length, dtype=torch.int64)
    return torch.zeros(samples, 3, size, size), tokens


OWN_PARAMETERS = "attention, beyond a plain layer"


def parameters_by_part(model: CLIP) -> dict[str, int]:
    """Count the parameters of each part; the parts add up to the whole model."""
    parts = {"vision tower": 0, "text tower, logit scale": 0, OWN_PARAMETERS: 0}
    for name, parameter in model.named_parameters():
        inner = name.partition(".attn.")[2]
        if inner and not inner.startswith(("qkv.", "part_qkv.", "out_proj.")):
            parts[OWN_PARAMETERS] += parameter.numel()
        elif name.startswith(("visual.", "image_projection")):
            parts["vision tower"] += parameter.numel()
        else:
            parts["text tower, logit scale"] += parameter.numel()
    return parts


def peak_of_pass(model: nn.Module, images: Tensor, tokens: Tensor, precision: str) -> int:
    """Measure the peak bytes of a forward and backward pass, without parameters, their gradients and inputs.

    Tensors may be real or fake.
    """
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.empty_like(parameter)
    grads = [p.grad for p in trained if p.grad is not None]
    live = LiveBytes([*model.parameters(), *grads, images, tokens])
    with live:
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            out = model(images, tokens)
        (out["image_features"].sum() + out["text_features"].sum()).backward()
    model.zero_grad()
    return live.peak


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Count the bytes of the storages that operations make within the context; `peak` is the most at once.

    Storages of `ignored_tensors` do not count, even if an operation returns them (such as a gradient that is added to).
    """

    def __init__(self, ignored_tensors: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in ignored_tensors}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.untyped_storage()._cdata not in self._known:
                storage = tensor.untyped_storage()
                self._known.add(storage._cdata)
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
                weakref.finalize(storage, self._forget, storage._cdata, storage.nbytes())
        return out

    def _forget(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.live -= size

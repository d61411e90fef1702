"""The plan of a run (`diffclip train --dry-run`): parameters and operations, and the time and memory of ten steps here.

Parameters and operations are counted on a model without values. A timed step is forward, loss, backward and AdamW on a
batch of random numbers, in one process. Data, validation, checkpoints and the exchange between processes are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from diffclip.config import CLIPConfig, name_of
from diffclip.errors import InputError
from diffclip.model import CLIP, empty_model
from diffclip.training.about import cpu_name
from diffclip.training.accumulate import backward_in_parts
from diffclip.training.distributed import native_precision
from diffclip.training.losses import make_criterion
from diffclip.training.recipe import Recipe
from diffclip.training.run import build_model, compile_blocks

RunPlan = dict[str, Any]
"""The facts of a planned run by name. `share` is the number of samples of a batch in one process, and `pass_size` those
in one forward pass. Operations are for the forward pass of one sample. `memory` is the peak in bytes of a process on a
GPU, None on a CPU. Steps, samples and hours are None if the number of samples is not known."""
OWN_PARAMETERS = "attention, beyond a plain layer"
_LR = 1e-6  # so small that a made-up batch cannot make the weights infinite
_STEPS = 10
# a CPU takes as long for a sample in a small batch, so a timed step need not have the whole batch
_FEW, _CPU_SECONDS = 8, 2.0


def plan_run(recipe: Recipe, world: int, strategy: str, samples: int | None) -> RunPlan:
    """Plan `recipe` for `world` processes on devices like this machine's, and time ten steps.

    Args:
        strategy: "ddp", "fsdp", or "auto" for DDP if there are several processes; the steps are those of "ddp".
        samples: samples per epoch; None: the recipe's `data.expected_samples`.

    Raises:
        InputError: a batch that does not fit into the GPU's memory.
    """
    samples = samples if samples is not None else recipe.data.expected_samples
    steps_per_epoch = samples // recipe.batch_size if samples is not None else None
    config, share = recipe.config(), max(1, recipe.batch_size // world)
    model = empty_model(config, "eager")  # so that every entry of every map counts
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    on_gpu = device.type == "cuda"
    rate, memory = measure_steps(recipe, device, share)
    rate *= world if on_gpu else 1  # the processes of a CPU share it
    steps = steps_per_epoch * recipe.epochs if steps_per_epoch else None
    return {
        "model": name_of(config),
        "precision": native_precision(recipe.precision, device.type),
        "strategy": "one process" if world == 1 else "fsdp" if strategy == "fsdp" else "ddp",
        "world": world,
        "batch_size": recipe.batch_size,
        "share": share,
        "pass_size": min(recipe.micro_batch or share, share),
        "parameters": _with_total(parameters_by_part(model)),
        "flops": _with_total(forward_flops(model)),
        "samples_per_epoch": samples,
        "steps_per_epoch": steps_per_epoch,
        "steps": steps,
        "device": torch.cuda.get_device_name(device) if on_gpu else cpu_name(),
        "memory": memory,
        "samples_per_second": rate,
        "hours": steps * recipe.batch_size / rate / 3600 if steps else None,
    }


def _with_total(parts: dict[str, int]) -> dict[str, int]:
    return parts | {"total": sum(parts.values())}


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


def forward_flops(model: CLIP) -> dict[str, int]:
    """Count the operations of a forward pass of one sample by tower, for a `model` of `empty_model`."""
    # not one sample, which some operations treat apart
    images, tokens = make_batch(model.config, 2, model.logit_scale.device)
    counts = {}
    for tower, encode, inputs in (
        ("vision tower", model.encode_image, images),
        ("text tower", model.encode_text, tokens),
    ):
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            encode(inputs)
        counts[tower] = counter.get_total_flops() // 2
    return counts


def make_batch(config: CLIPConfig, samples: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Draw normalized images [samples, 3, S, S] and tokens [samples, L] of the sizes that training has."""
    size, text = config.vision.image_size, config.text
    images = torch.randn(samples, 3, size, size, device=device)
    return images, torch.randint(1, text.vocab_size, (samples, text.context_length), device=device)


def make_step(
    recipe: Recipe, device: torch.device, samples: int, lengths: Sequence[int] | None = None
) -> Callable[[], float]:
    """Make a model and an optimizer of `recipe`; return a function that makes a step with a random batch of `samples`,
    in the recipe's precision and micro-batches, and returns its seconds. `lengths` are the tokens of each text; None:
    all have the whole context."""
    config = recipe.config()
    half = native_precision(recipe.precision, device.type) == "bf16"
    model = build_model(recipe).to(device).train()
    if recipe.compile:
        compile_blocks(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=_LR, fused=True)
    criterion = make_criterion(recipe.loss, recipe.gather_with_grad)
    batch = (*make_batch(config, samples, device), lengths or [config.text.context_length] * samples)

    def forward(images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            return model(images, tokens)

    def step() -> float:
        started = time.perf_counter()
        backward_in_parts(forward, criterion, *batch, Tensor.backward, recipe.micro_batch, nullcontext)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    return step


def measure_steps(recipe: Recipe, device: torch.device, share: int) -> tuple[float, int | None]:
    """Measure a process whose share of a batch is `share`: the samples per second, in the median of ten steps after two
    to warm up, and on a GPU the peak memory in bytes. A batch that does not fit there raises `InputError`."""
    samples, memory = share, None
    if device.type == "cpu":
        few = min(share, _FEW)
        step = make_step(recipe, device, few)
        step()
        samples = min(share, max(few, int(few * _CPU_SECONDS / step())))
    else:
        torch.cuda.reset_peak_memory_stats(device)
    try:
        step = make_step(recipe, device, samples)
        seconds = [step() for _ in range(2 + _STEPS)][2:]
    except torch.OutOfMemoryError:
        raise InputError(
            f"{share} samples do not fit into the memory of this GPU: try micro_batch=N, grad_checkpointing=true, or "
            "more devices"
        ) from None
    if device.type == "cuda":
        memory = torch.cuda.max_memory_reserved(device)
    return samples / median(seconds), memory

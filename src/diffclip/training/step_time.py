"""Time the steps of a recipe on this machine, with a made batch: forward, loss, backward and AdamW."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median

import torch
from torch import Tensor

from diffclip.errors import InputError
from diffclip.training.accumulate import backward_in_parts
from diffclip.training.distributed import native_precision
from diffclip.training.losses import make_criterion
from diffclip.training.recipe import Recipe
from diffclip.training.run import build_model, compile_blocks

_LR = 1e-6  # so small that a made-up batch cannot make the weights infinite
_STEPS = 10
# a CPU takes as long for a sample in a small batch, so a timed step need not have the whole batch
_FEW, _CPU_SECONDS = 8, 2.0


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
    size, text = config.vision.image_size, config.text
    images = torch.randn(samples, 3, size, size, device=device)
    tokens = torch.randint(1, text.vocab_size, (samples, text.context_length), device=device)
    lengths = lengths or [text.context_length] * samples

    def forward(images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        with torch.autocast(device.type, torch.bfloat16, enabled=half):
            out: dict[str, Tensor] = model(images, tokens)
        return out

    def step() -> float:
        started = time.perf_counter()
        batch, size = (images, tokens, lengths), recipe.micro_batch
        backward_in_parts(forward, criterion, *batch, Tensor.backward, size, nullcontext)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() - started

    return step


def measure_rate(recipe: Recipe, device: torch.device, share: int) -> float:
    """Measure the samples per second of a process whose share of a batch is `share`: the median of ten steps after two
    to warm up. A batch that does not fit into the GPU's memory raises `InputError`."""
    samples = share
    if device.type == "cpu":
        few = min(share, _FEW)
        step = make_step(recipe, device, few)
        step()
        samples = min(share, max(few, int(few * _CPU_SECONDS / step())))
    try:
        step = make_step(recipe, device, samples)
        seconds = [step() for _ in range(2 + _STEPS)][2:]
    except torch.OutOfMemoryError:
        raise InputError(f"a batch of {share} does not fit into this GPU: try micro_batch=N") from None
    return samples / median(seconds)

"""The step that training does, with one arm's model on a made-up batch, to be timed."""

from __future__ import annotations

import time
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from diffclip.data.transforms import normalise
from diffclip.training.accumulate import backward_of_batch
from diffclip.training.distributed import clip_gradients, compile_blocks, make_fabric
from diffclip.training.launch import Hardware
from diffclip.training.losses import make_criterion
from diffclip.training.optimizer import MAX_LOGIT_SCALE, make_optimizer
from diffclip.training.recipe import Recipe
from diffclip.training.start import build_model

TIMED = 3
"""Steps in a turn, after one that warms up."""
_LR = 1e-6  # so small that a made-up batch cannot make the weights infinite


class Step:
    """An arm's model and optimiser on the device, and the step that training does with them."""

    def __init__(self, recipe: Recipe, device: torch.device, batch: tuple[Tensor, Tensor]) -> None:
        self._recipe, self._device, self._batch = recipe, device, batch
        fabric: Any = make_fabric(Hardware(accelerator=device.type).resolved(), recipe.precision)
        fabric.launch()
        self._fabric, self._backward = fabric, fabric.backward
        self.model = build_model(recipe).train()
        if recipe.compile:
            compile_blocks(self.model)
        self._wrapped = fabric.setup_module(self.model)
        self._optimiser = make_optimizer(self.model, recipe.model_copy(update={"lr": _LR}))
        self._wrapped_optimiser = fabric.setup_optimizers(self._optimiser)
        self._criterion = make_criterion(recipe.loss, recipe.gather_with_grad)

    def turn(self) -> tuple[float, int | None]:
        """Milliseconds of a step, and on a GPU the most bytes that this arm had there."""
        self()
        on_gpu = self._device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            before = torch.cuda.memory_allocated(self._device)
        started = time.perf_counter()
        for _ in range(TIMED):
            self()
        if on_gpu:
            torch.cuda.synchronize(self._device)
        took = 1000 * (time.perf_counter() - started) / TIMED
        if not on_gpu:
            return took, None
        return took, torch.cuda.max_memory_allocated(self._device) - before + self._resident()

    def __call__(self) -> None:
        step = self._forward, self._criterion, *self._batch, self._backward
        loss, _ = backward_of_batch(*step, self._recipe.micro_batch, nullcontext)
        norm = clip_gradients(self._fabric, self.model, self._recipe.clip_grad_norm)
        torch.stack((loss, norm)).tolist()  # training waits for them: it takes no step that is not finite
        self._wrapped_optimiser.step()
        self._optimiser.zero_grad()
        with torch.no_grad():
            self.model.logit_scale.clamp_(0, MAX_LOGIT_SCALE)

    def _forward(self, images: Tensor, tokens: Tensor) -> dict[str, Tensor]:
        out: dict[str, Tensor] = self._wrapped(normalise(images, self.model.config.preprocess), tokens)
        return out

    def _resident(self) -> int:
        """Bytes that stay from step to step: the batch, the weights and the optimiser's state."""
        state = [value for entry in self._optimiser.state.values() for value in entry.values()]
        tensors = [*self._batch, *self.model.parameters(), *self.model.buffers(), *state]
        return sum(value.nbytes for value in tensors if value.device.type == self._device.type)


def make_batch(
    samples: int, size: int, length: int, vocabulary: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Random uint8 pictures [samples, 3, size, size], and tokens [samples, length] of texts that end half-way."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(256, (samples, 3, size, size), dtype=torch.uint8, generator=generator)
    tokens = torch.randint(1, vocabulary - 1, (samples, length), generator=generator)
    tokens[:, length // 2 :] = 0
    tokens[:, length // 2] = vocabulary - 1
    return images.to(device), tokens.to(device)

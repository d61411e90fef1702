"""What real processes are given to measure: a model, a batch, and how often."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diffclip.model import CLIP
from diffclip.training.recipe import Recipe, parse_recipe

_KIB = 1024


@dataclass(frozen=True)
class Sizes:
    """What is measured; bytes of `transfers` are those of one process's part, ascending."""

    batch: int = 2048
    embed: int = 512
    transfers: tuple[int, ...] = (64 * _KIB, 512 * _KIB, 2048 * _KIB, 8192 * _KIB)
    model: str = "DiffCLIP-ViT-Ti-16"
    architecture: dict[str, Any] | None = None
    image_size: int | None = 64  # small pictures: what is exchanged depends on the parameters alone
    step_batch: int = 8
    parts: int = 2
    repeats: int = 5
    folder: str = ""
    earlier: list[int] = field(default_factory=list)

    def recipe(self) -> Recipe:
        """A recipe of the model, in float32, whose data are never read.

        Raises:
            InputError: no such model, or an architecture that does not fit.
        """
        model = {"model": self.model, "architecture": self.architecture, "image_size": self.image_size}
        run = {"epochs": 1, "batch_size": self.step_batch, "data": {"train": "none"}}
        return parse_recipe(model | run, "the model to measure")


def made_batch(model: CLIP, samples: int) -> tuple[Tensor, Tensor]:
    """Pictures of noise and tokens of texts that say nothing, of the sizes that `model` takes."""
    size, text = model.config.vision.image_size, model.config.text
    tokens = torch.zeros(samples, text.context_length, dtype=torch.int64)
    tokens[:, -1] = text.vocab_size - 1
    return torch.randn(samples, 3, size, size), tokens

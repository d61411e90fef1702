"""A model with its optimizer, and batches for it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.models import config_of
from diffclip.training.losses import make_criterion
from diffclip.training.optimizer import make_optimizer
from diffclip.training.recipe import read_recipe

Batch = tuple[Tensor, Tensor]


class Steps:
    """One model with its optimizer; calling it takes one step of `kind` on `batch`."""

    def __init__(self, model: nn.Module, device: torch.device, precision: str) -> None:
        self.model = model.to(device)
        # a rate so small that a made-up batch cannot make the weights infinite
        self.optimizer = make_optimizer(self.model, read_recipe("flickr8k_cpu", ["lr=1e-6"]))
        self.criterion = make_criterion("clip", gather_with_grad=False)
        self.autocast = torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16")

    def __call__(self, kind: str, batch: Batch) -> None:
        self.model.train(kind == "training")
        if kind == "inference":
            with torch.no_grad(), self.autocast:
                self.model(*batch)
            return
        self._loss(batch).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def _loss(self, batch: Batch) -> Tensor:
        with self.autocast:
            return self.criterion(**self.model(*batch))

    def kept(self, batch: Batch) -> int:
        """Bytes that a forward pass keeps for the backward pass, without the weights; each tensor counts once."""
        self.model.train()
        weights = {parameter.untyped_storage().data_ptr() for parameter in self.model.parameters()}
        found: dict[int, int] = {}

        def note(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in weights:
                found[storage.data_ptr()] = storage.nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            loss = self._loss(batch)
        del loss  # only now, or the memory of one tensor would serve another
        return sum(found.values())

    def resident(self) -> int:
        """Bytes of weights and of the optimizer's state."""
        state = [
            x for entry in self.optimizer.state.values() for x in entry.values() if isinstance(x, Tensor)
        ]
        tensors = [*self.model.parameters(), *self.model.buffers(), *state]
        return sum(x.numel() * x.element_size() for x in tensors)


def make_batch(size: str | None, batch: int, device: torch.device) -> Batch:
    """Random images and captions that end half-way."""
    config = config_of("CLIP", size)
    vision, text = config.vision, config.text
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(batch, 3, vision.image_size, vision.image_size, generator=generator)
    tokens = torch.randint(1, text.vocab_size - 2, (batch, text.context_length), generator=generator)
    tokens[:, text.context_length // 2 :] = 0
    tokens[:, text.context_length // 2] = text.vocab_size - 1
    return images.to(device), tokens.to(device)

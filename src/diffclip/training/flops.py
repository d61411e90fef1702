"""Operations a sample: those of the matrix products, counted by torch over a model without weights.

A multiplication and an addition are two. Attention is counted by its formula, every entry of every map: fused kernels
leave out the half that a causal map has no use for, and compute maps again in the backward pass instead of keeping
them, which in these models are a few per cent either way (docs/performance.md).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from torch.utils.flop_counter import FlopCounterMode

from diffclip.config import CLIPConfig
from diffclip.training.weightless import make_batch, weightless

Result = TypeVar("Result")

# samples that are counted together: enough that no size is 1, which some operations treat apart
_COUNTED = 2


@dataclass(frozen=True)
class Flops:
    """Operations a sample.

    Attributes:
        vision, text: the towers' forward passes, projections included.
        backward: the backward pass, with what grad checkpointing computes again.
        features_first: the forward pass that comes before, where a batch is computed in parts; else 0.
        loss: logits and their gradients.
    """

    vision: int
    text: int
    backward: int
    features_first: int
    loss: int

    @property
    def forward(self) -> int:
        """One forward pass."""
        return self.vision + self.text

    @property
    def training(self) -> int:
        """All that a sample costs in a step."""
        return self.forward + self.backward + self.features_first + self.loss


def count_flops(
    config: CLIPConfig, batch_size: int, grad_checkpointing: bool = False, in_parts: bool = False
) -> Flops:
    """Operations a sample in training `config` with batches of `batch_size` over all processes.

    `in_parts` says that a process computes its share of the batch in several passes (`micro_batch`).
    """
    vision, text, backward = _passes(config.model_dump_json(), grad_checkpointing)
    again = vision + text if in_parts else 0
    return Flops(vision, text, backward, again, loss_flops(config.embed_dim, batch_size))


@functools.cache
def _passes(config: str, grad_checkpointing: bool) -> tuple[int, int, int]:
    """Operations a sample of the vision tower, the text tower and the backward pass."""
    parsed = CLIPConfig.model_validate_json(config)
    with weightless(parsed, "eager", grad_checkpointing) as model:
        images, tokens = make_batch(parsed, _COUNTED)
        image_features, vision = _count(lambda: model.encode_image(images))
        text_features, text = _count(lambda: model.encode_text(tokens))
        _, backward = _count((image_features.sum() + text_features.sum()).backward)
    return vision, text, backward


def loss_flops(embed_dim: int, batch_size: int) -> int:
    """Operations a sample for its rows of both logits [batch_size], and for both gradients of each product."""
    return 3 * 2 * 2 * embed_dim * batch_size


def _count(work: Callable[[], Result]) -> tuple[Result, int]:
    """What `work` returns, and its operations a sample."""
    with FlopCounterMode(display=False) as counter:
        result = work()
    return result, int(counter.get_total_flops()) // _COUNTED

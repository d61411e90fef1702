"""Memory of one process in a training step, by part.

What the passes need is measured: the saved tensors of a forward pass, and the most that is alive in forward and
backward, over a model without weights and with the very batch that is asked about (weightless.py). The rest is
arithmetic: types, numbers of parameters, and how they are shared out.

What is not seen: a compiled model (which keeps less), and scratch memory inside of single GPU kernels.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diffclip.config import CLIPConfig
from diffclip.training.distributed import blocks_of
from diffclip.training.losses import make_criterion
from diffclip.training.recipe import Recipe
from diffclip.training.weightless import make_batch, weightless

FLOAT = 4
_TOKEN = 8
# CUDA's context, cuBLAS' and cuDNN's workspaces, NCCL's buffers: an assumption, 0.7 to 1.5 GiB in practice
CONTEXT = int(1.25 * 2**30)
# what torch's allocator holds and cannot use, of everything that comes and goes within a step: an assumption
SLACK = 0.05


@dataclass(frozen=True)
class PassMemory:
    """Bytes of one forward and backward pass.

    Attributes:
        copies: what is kept whatever the batch: weights in bfloat16, which autocast makes once a pass.
        activations: what the forward pass keeps for the backward pass.
        working: what the backward pass has beside them at its worst moment.
    """

    copies: int
    activations: int
    working: int


@dataclass(frozen=True)
class StateMemory:
    """Bytes of what lasts from step to step, and of what sharding gathers for a while."""

    weights: int
    gradients: int
    optimiser: int
    gathered: int


def measure_pass(recipe: Recipe, samples: int) -> PassMemory:
    """What a forward and backward pass of `samples` takes under the recipe's precision, backend and checkpointing."""
    config = recipe.config().model_dump_json()
    return _measure(config, recipe.attention_backend, recipe.grad_checkpointing, recipe.precision, samples)


@functools.cache
def _measure(config: str, backend: str, again: bool, precision: str, samples: int) -> PassMemory:
    parsed = CLIPConfig.model_validate_json(config)
    with weightless(parsed, backend, again) as model:
        saved, most = run_pass(model, *make_batch(parsed, samples), precision)
        # from two samples on, what is kept is a constant and a multiple of the samples
        few, other = 2, max(3, samples)
        of_few, of_other = (
            saved if n == samples else run_pass(model, *make_batch(parsed, n), precision, backward=False)[0]
            for n in (few, other)
        )
    copies = of_few - few * (of_other - of_few) // (other - few)
    return PassMemory(copies, saved - copies, max(0, most - saved))


def run_pass(
    model: nn.Module, images: Tensor, tokens: Tensor, precision: str, backward: bool = True
) -> tuple[int, int]:
    """Bytes that a forward pass keeps for the backward pass, and the most that is alive in both passes together.

    Neither counts parameters, inputs, and gradients that are there already. What is kept is the saved tensors' distinct
    storages. Tensors may be real or fake.
    """
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    others = [
        *model.parameters(),
        *(p.grad for p in model.parameters() if p.grad is not None),
        images,
        tokens,
    ]
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[_storage(tensor)] = tensor.untyped_storage().nbytes()
        return tensor

    live = LiveBytes(others)
    with live:
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), _autocast(precision):
            out = model(images, tokens)
        for tensor in others:
            kept.pop(_storage(tensor), None)
        if backward:
            (out["image_features"].sum() + out["text_features"].sum()).backward()
    model.zero_grad()
    return sum(kept.values()), live.most


class LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of the storages that operations make while this is active: how many live `now`, and the `most` so far.

    `others` do not count, though operations may return them too (a gradient that is added to).
    """

    def __init__(self, others: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known = {_storage(tensor) for tensor in others}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and _storage(tensor) not in self._known:
                self._born(tensor.untyped_storage())
        return out

    def _born(self, storage: torch.UntypedStorage) -> None:
        address, size = storage._cdata, storage.nbytes()
        self._known.add(address)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, address, size)

    def _gone(self, address: int, size: int) -> None:
        self._known.discard(address)
        self.now -= size


def state_memory(config: CLIPConfig, world: int, sharded: bool, in_parts: bool) -> StateMemory:
    """Weights, gradients and AdamW's two moments, in float32, of one process of `world`.

    `sharded` is FSDP: each process has its share, and gathers a block while it computes with it (and the next one
    meanwhile); what belongs to no block, the token embedding above all, stays gathered through the step. With batches
    `in_parts`, gradients are whole until the last part.
    """
    whole, block, rest = _sizes(config.model_dump_json())
    if not sharded:
        return StateMemory(FLOAT * whole, FLOAT * whole, 2 * FLOAT * whole, 0)
    share = -(-whole // world)
    # two blocks' weights and one block's gradients; weights and gradients of the rest
    gathered = FLOAT * (3 * block + 2 * rest)
    gradients = FLOAT * (whole if in_parts else share)
    return StateMemory(FLOAT * share, gradients, 2 * FLOAT * share, gathered)


@functools.cache
def _sizes(config: str) -> tuple[int, int, int]:
    """Numbers of parameters: all of them, those of the largest block, and those of no block."""
    with weightless(CLIPConfig.model_validate_json(config), "auto") as model:
        blocks = [_count(block) for block in blocks_of(model)]
        whole = _count(model)
    return whole, max(blocks), whole - sum(blocks)


def loss_memory(kind: str, share: int, world: int, embed_dim: int) -> tuple[int, int]:
    """(bytes of features, of logits) at the worst moment of the loss "clip" or "siglip", of a process's `share`.

    Features of all processes are gathered, and have gradients; logits are the rows of the process's own samples.
    """
    per_logit = _bytes_per_logit(kind)
    gathered = (2 if kind == "clip" else 1) * share * world if world > 1 else 0
    return 2 * FLOAT * embed_dim * (2 * share + gathered), per_logit * share * share * world


@functools.cache
def _bytes_per_logit(kind: str) -> int:
    """How much the loss holds for every pair of its own samples and all texts, measured over square batches."""
    size = 128
    one, two, three = (_loss_peak(kind, times * size) for times in (1, 2, 3))
    # the second difference: what does not grow with the number of pairs cancels
    return (three - 2 * two + one) // (2 * size**2)


def _loss_peak(kind: str, samples: int) -> int:
    from torch._subclasses.fake_tensor import FakeTensorMode

    criterion = make_criterion(kind, gather_with_grad=True)
    with FakeTensorMode():
        features = [torch.zeros(samples, 8, requires_grad=True) for _ in range(2)]
        scalars = {"logit_scale": torch.zeros((), requires_grad=True)}
        if kind == "siglip":
            scalars["logit_bias"] = torch.zeros((), requires_grad=True)
        live = LiveBytes()
        with live:
            loss = criterion(image_features=features[0], text_features=features[1], **scalars)
            loss.backward()  # type: ignore[no-untyped-call]
    return live.most


def input_memory(config: CLIPConfig, share: int, part: int) -> int:
    """Bytes of a process's batch on its device: pictures as they come and tokens, and what is normalised at a time."""
    picture = 3 * config.vision.image_size**2
    return share * (picture + _TOKEN * config.text.context_length) + part * picture * FLOAT


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _autocast(precision: str) -> torch.autocast:
    return torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16")

"""A step's gradients, with all of the batch's negatives, from forward passes of a part of it at a time.

Features of every part are computed without a graph and kept; the loss over all of them gives the gradient of each
feature; then each part is computed again, with a graph, and handed its features' gradients. The result is the big
batch's, at the cost of one more forward pass. Source: Gao et al. 2021 (GradCache); OpenCLIP's `--accum-freq` does the
like with the loss computed anew for every part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from diffclip.training.losses import Criterion

Output = dict[str, Tensor]
FEATURES = ("image_features", "text_features")


def backward_in_parts(
    forward: Callable[[Tensor, Tensor], Output],
    criterion: Criterion,
    images: Tensor,
    tokens: Tensor,
    backward: Callable[[Tensor], None],
    size: int | None,
    without_sync: Callable[[], AbstractContextManager[object]],
) -> tuple[Tensor, Output]:
    """Forward, loss and backward of a batch, with at most `size` samples in a forward pass (None: all); the same loss
    (0-dim) and gradients for any size. The loss and what the model returned are without a graph.

    Random numbers (drop path, patch dropout) are those of the first pass again in the second.

    Args:
        forward: images [B, 3, S, S] and tokens [B, L] to what `CLIP.forward` returns.
        backward: adds the gradients of a scalar to the parameters'.
        without_sync: a context in which `backward` leaves the exchange between processes to the last part.
    """
    if size is None or size >= len(images):
        out = forward(images, tokens)
        loss = criterion(**out)
        backward(loss)
        return loss.detach(), {name: value.detach() for name, value in out.items()}
    parts = list(zip(torch.split(images, size), torch.split(tokens, size), strict=True))
    states, outs = [], []
    with torch.no_grad():
        for part in parts:
            states.append(_generators(images.device))
            outs.append(forward(*part))
    whole = {name: torch.cat([out[name] for out in outs]) for name in FEATURES}
    scalars = {name: value.detach().clone() for name, value in outs[0].items() if name not in FEATURES}
    leaves = {name: value.requires_grad_() for name, value in (whole | scalars).items()}
    loss = criterion(**leaves)
    loss.backward()  # type: ignore[no-untyped-call]

    starts = range(0, len(images), size)
    for start, part, state in zip(starts, parts, states, strict=True):
        last = start == starts[-1]
        with _replayed(state, images.device), nullcontext() if last else without_sync():
            out = forward(*part)
            # a scalar whose gradient with respect to each feature is the one the loss has
            handed = [(out[name] * _grad(leaves[name])[start : start + size]).sum() for name in FEATURES]
            handed += [out[name] * _grad(leaves[name]) for name in scalars if last]
            backward(torch.stack(handed).sum())
    return loss.detach(), {name: value.detach() for name, value in leaves.items()}


def _grad(leaf: Tensor) -> Tensor:
    assert leaf.grad is not None
    return leaf.grad


def _generators(device: torch.device) -> tuple[Tensor, Tensor | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state(device) if device.type == "cuda" else None


@contextmanager
def _replayed(state: tuple[Tensor, Tensor | None], device: torch.device) -> Iterator[None]:
    """The generators as they were at `state`, for a while; afterwards they are where they were before."""
    with torch.random.fork_rng([] if state[1] is None else [device]):
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)
        yield

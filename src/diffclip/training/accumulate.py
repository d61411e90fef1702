"""Compute the gradients of a step in several forward passes, with the whole batch as negatives.

First, the features of every part of the batch are computed without a graph and kept. The loss over all features gives
the gradient of each feature. Then each part is computed again with a graph, and the gradients of its features are
backpropagated. The result is the same as for the whole batch, and costs one more forward pass. Source: Gao et al. 2021
(GradCache). OpenCLIP's `--accum-freq` is similar, but computes the loss again for every part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import Tensor

from diffclip.training.losses import Criterion

Output = dict[str, Tensor]
FEATURES = ("image_features", "text_features")
_ROUND = 8


def backward_in_parts(
    forward: Callable[[Tensor, Tensor], Output],
    criterion: Criterion,
    images: Tensor,
    tokens: Tensor,
    lengths: Sequence[int],
    backward: Callable[[Tensor], None],
    size: int | None,
    without_sync: Callable[[], AbstractContextManager[object]],
) -> tuple[Tensor, Output]:
    """Run forward, loss and backward of a batch with at most `size` samples in a forward pass (None: all). Texts are
    cut to the longest of the pass.

    The loss (0-dim) and the gradients are the same for any size, except with drop path or patch dropout, whose random
    numbers are drawn part by part (the second pass of a part repeats those of its first pass). The returned loss and
    model outputs have no graph.

    Args:
        forward: maps images [B, 3, S, S] and tokens [B, ≤ L] to what `CLIP.forward` returns.
        lengths: the number of tokens of each text [B].
        backward: adds the gradients of a scalar to those of the parameters.
        without_sync: makes a context, for all parts but the last, in which processes exchange no gradients.
    """
    if size is None or size >= len(images):
        out = forward(images, cut_texts(tokens, lengths))
        loss = criterion(**out)
        backward(loss)
        return loss.detach(), {name: value.detach() for name, value in out.items()}
    starts = range(0, len(images), size)
    parts = [
        (images[start : start + size], cut_texts(tokens[start : start + size], lengths[start : start + size]))
        for start in starts
    ]
    states, outs, on_gpu = [], [], images.device.type == "cuda"
    with torch.no_grad():
        for part in parts:
            states.append(
                (torch.get_rng_state(), torch.cuda.get_rng_state(images.device) if on_gpu else None)
            )
            outs.append(forward(*part))
    whole = {name: torch.cat([out[name] for out in outs]) for name in FEATURES}
    scalars = {name: value.detach().clone() for name, value in outs[0].items() if name not in FEATURES}
    leaves = {name: value.requires_grad_() for name, value in (whole | scalars).items()}
    loss = criterion(**leaves)
    grads = dict(zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True))

    for start, part, state in zip(starts, parts, states, strict=True):
        last = start == starts[-1]
        with _replayed(state, images.device), nullcontext() if last else without_sync():
            out = forward(*part)
            # the gradient of this scalar with respect to each feature is that of the loss
            products = [(out[name] * grads[name][start : start + size]).sum() for name in FEATURES]
            products += [out[name] * grads[name] for name in scalars if last]
            backward(torch.stack(products).sum())
    return loss.detach(), {name: value.detach() for name, value in leaves.items()}


def cut_texts(tokens: Tensor, lengths: Sequence[int]) -> Tensor:
    """Cut tokens [B, L] to the longest of `lengths` [B], rounded up so that `compile` sees few shapes. A causal tower
    takes its features at the end of a text, and nothing behind the end reaches them."""
    return tokens[:, : _ROUND * -(-max(lengths) // _ROUND)]


@contextmanager
def _replayed(state: tuple[Tensor, Tensor | None], device: torch.device) -> Iterator[None]:
    """Set the random generators to `state` within the context, and restore them afterwards."""
    with torch.random.fork_rng([] if state[1] is None else [device]):
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], device)
        yield

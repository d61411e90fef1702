"""Measures of a map: its share on an object, and its spread, without a threshold.

Shapes: a map is scores [..., P] of P patches, row by row, and `coverage` [..., P] how much of each patch the object
covers, in [0, 1]; leading dimensions broadcast. A patch with coverage c counts c as object and 1 − c as background.

Scores may have a sign: the detectors rank by the score itself, "inside" looks at what is positive, and the measures of
spread at magnitudes. A map that is 0 wherever a share is taken of it counts as a uniform one.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STRONGEST = 10  # number of patches that `top` and `background` look at
_MOSTLY = 0.5


def auroc(scores: Tensor, coverage: Tensor) -> Tensor:
    """Area under the ROC curve of the scores as a detector of the object, [...]; 0.5 for a uniform map.

    The probability that a pixel of the object scores higher than one beside it, ties counting half. The object covers
    neither nothing nor everything.
    """
    scores, on, left, right = _sorted(scores, coverage)
    off = 1 - on
    before = torch.nn.functional.pad(off.cumsum(-1), (1, 0))
    below, upto = before.gather(-1, left), before.gather(-1, right)
    pairs = on.sum(-1) * off.sum(-1)
    return (on * (below + upto)).sum(-1) / (2 * pairs)


def average_precision(scores: Tensor, coverage: Tensor) -> Tensor:
    """Σ (R_n − R_n−1)·P_n over the distinct scores from high to low, [...]; the object's area for a uniform map.

    R is recall and P precision over pixels, as scikit-learn's `average_precision_score`. The object covers something.
    """
    scores, on, left, _ = _sorted(scores, coverage)
    total = on.sum(-1, keepdim=True)
    before = torch.nn.functional.pad(on.cumsum(-1), (1, 0)).gather(-1, left)
    precision = (total - before) / (scores.shape[-1] - left)
    return ((on / total) * precision).sum(-1)


def inside(scores: Tensor, coverage: Tensor) -> Tensor:
    """The share of what is positive that lies on the object, [...]; the object's area for a uniform map."""
    return (_shares(scores.clamp_min(0)) * coverage).sum(-1)


def pointing(scores: Tensor, coverage: Tensor) -> Tensor:
    """Coverage of the strongest patch by the object, the mean where several are as strong, [...]."""
    best = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
    return (best * coverage).sum(-1) / best.sum(-1)


def entropy(scores: Tensor) -> Tensor:
    """The entropy of |scores| as shares, by that of a uniform map: from 0 (one patch has all) to 1, [...]."""
    return _nats(scores) / math.log(scores.shape[-1])


def effective_patches(scores: Tensor) -> Tensor:
    """Number of patches that a uniform map of the same entropy would cover, from 1 to P, [...]."""
    return _nats(scores).exp()


def class_token_share(rows: Tensor) -> Tensor:
    """The share of |rows| [..., 1 + P] on the class token, which comes first, [...]."""
    return _shares(rows.abs())[..., 0]


def top(scores: Tensor, count: int = STRONGEST) -> Tensor:
    """The share of |scores| on the `count` strongest patches, all where there are fewer, [...]."""
    shares = _shares(scores.abs())
    return shares.topk(min(count, shares.shape[-1])).values.sum(-1)


def background(scores: Tensor, coverage: Tensor, count: int = STRONGEST) -> Tensor:
    """The share of |scores| on the `count` strongest patches of which the object covers less than half, [...]."""
    shares = _shares(scores.abs()) * (coverage < _MOSTLY)
    return shares.topk(min(count, shares.shape[-1])).values.sum(-1)


def center_prior(side: int) -> Tensor:
    """A map that knows no image, [side²]: a Gaussian about the center with a quarter of the edge as its deviation."""
    places = (torch.arange(side) + 0.5) / side - 0.5
    return torch.exp(-8 * (places.square()[:, None] + places.square())).flatten()


def _sorted(scores: Tensor, coverage: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Scores rising, the coverage of each, and where the ties of each begin and end (exclusive), all [..., P]."""
    scores, coverage = torch.broadcast_tensors(scores, coverage)  # type: ignore[no-untyped-call]
    scores, order = scores.sort(dim=-1)
    scores = scores.contiguous()
    left = torch.searchsorted(scores, scores)
    right = torch.searchsorted(scores, scores, right=True)
    # hundreds of patches in float32 would round in the fifth digit
    return scores, coverage.gather(-1, order).double(), left, right


def _shares(amounts: Tensor) -> Tensor:
    """Amounts ≥ 0 [..., P] by their sum; equal shares where all are 0."""
    # scaled first: sums of subnormal numbers have few digits
    largest = amounts.amax(-1, keepdim=True)
    amounts = torch.where(largest > 0, amounts.double() / largest, 1.0)
    return amounts / amounts.sum(-1, keepdim=True)


def _nats(scores: Tensor) -> Tensor:
    found: Tensor = torch.special.entr(_shares(scores.abs())).sum(-1)
    return found

"""Measures of a map: its share on an object, and its spread, without a threshold.

Shapes: a map is scores [..., P] of P patches, row by row. `coverage` [..., P] is the share of each patch that the
object covers. Leading dimensions broadcast. A patch with coverage c counts c as object and 1 − c as background.

Scores may be signed: `auroc`, `average_precision` and `pointing` rank by the score itself, `inside` uses only positive
scores, and measures of spread use magnitudes. A map of zeros (`inside`: no positive score) counts as uniform.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

STRONGEST = 10  # number of patches that `top` and `background` look at


def auroc(scores: Tensor, coverage: Tensor) -> Tensor:
    """Area under the ROC curve of the scores as a detector of the object, [...]; 0.5 for a uniform map.

    It is the probability that a pixel of the object scores higher than a pixel of the background; ties count half. The
    object must cover something, and not everything.
    """
    scores, on, start, end = _sorted(scores, coverage)
    off = 1 - on
    before = torch.nn.functional.pad(off.cumsum(-1), (1, 0))
    below, upto = before.gather(-1, start), before.gather(-1, end)
    pairs = on.sum(-1) * off.sum(-1)
    return (on * (below + upto)).sum(-1) / (2 * pairs)


def average_precision(scores: Tensor, coverage: Tensor) -> Tensor:
    """Σ (R_n − R_n−1)·P_n over the distinct scores from high to low, [...]; the object's area for a uniform map.

    R is recall, P precision over pixels, as scikit-learn's `average_precision_score`. The object must cover something.
    """
    scores, on, start, _ = _sorted(scores, coverage)
    total = on.sum(-1, keepdim=True)
    before = torch.nn.functional.pad(on.cumsum(-1), (1, 0)).gather(-1, start)
    precision = (total - before) / (scores.shape[-1] - start)
    return ((on / total) * precision).sum(-1)


def inside(scores: Tensor, coverage: Tensor) -> Tensor:
    """The share of the positive scores that lies on the object, [...]; the object's area for a uniform map."""
    return (_shares(scores.clamp_min(0)) * coverage).sum(-1)


def pointing(scores: Tensor, coverage: Tensor) -> Tensor:
    """Coverage of the strongest patch by the object, [...]; the mean coverage if several patches tie."""
    best = (scores == scores.amax(-1, keepdim=True)).to(scores.dtype)
    return (best * coverage).sum(-1) / best.sum(-1)


def entropy(scores: Tensor) -> Tensor:
    """The entropy of |scores| as shares, divided by that of a uniform map: from 0 (one patch has all) to 1, [...]."""
    return _entropy_in_nats(scores) / math.log(scores.shape[-1])


def effective_patches(scores: Tensor) -> Tensor:
    """Number of patches that a uniform map of the same entropy would cover, from 1 to P, [...]."""
    return _entropy_in_nats(scores).exp()


def class_token_share(rows: Tensor) -> Tensor:
    """The share of |rows| [..., N] on the class token, which is the first of all N tokens, [...]."""
    return _shares(rows.abs())[..., 0]


def top(scores: Tensor) -> Tensor:
    """The share of |scores| on the ten strongest patches (on all if there are fewer), [...]."""
    shares = _shares(scores.abs())
    return shares.topk(min(STRONGEST, shares.shape[-1])).values.sum(-1)


def background(scores: Tensor, coverage: Tensor) -> Tensor:
    """The share of |scores| on the ten strongest of the patches that the object covers by less than half, [...]."""
    shares = _shares(scores.abs()) * (coverage < 0.5)
    return shares.topk(min(STRONGEST, shares.shape[-1])).values.sum(-1)


def center_prior(side: int) -> Tensor:
    """A map that ignores the image, [side²]: a Gaussian around the center, standard deviation a quarter of the edge."""
    positions = (torch.arange(side) + 0.5) / side - 0.5
    return torch.exp(-8 * (positions.square()[:, None] + positions.square())).flatten()


def _sorted(scores: Tensor, coverage: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sort by score, ascending: scores, coverage, start and end (exclusive) of the ties of each score, all [..., P]."""
    scores, coverage = torch.broadcast_tensors(scores, coverage)  # type: ignore[no-untyped-call]
    scores, order = scores.sort(dim=-1)
    scores = scores.contiguous()
    start = torch.searchsorted(scores, scores)
    end = torch.searchsorted(scores, scores, right=True)
    # in float32, sums over hundreds of patches would be wrong in the fifth digit
    return scores, coverage.gather(-1, order).double(), start, end


def _shares(amounts: Tensor) -> Tensor:
    """Divide amounts ≥ 0 [..., P] by their sum; if all are 0, return equal shares."""
    # scaled first, because sums of subnormal numbers have few digits
    largest = amounts.amax(-1, keepdim=True)
    amounts = torch.where(largest > 0, amounts.double() / largest, 1.0)
    return amounts / amounts.sum(-1, keepdim=True)


def _entropy_in_nats(scores: Tensor) -> Tensor:
    return torch.special.entr(_shares(scores.abs())).sum(-1)

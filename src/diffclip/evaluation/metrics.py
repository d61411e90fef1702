"""Zero-shot classification and retrieval metrics as pure functions on embeddings.

Every metric comes from ranks: the number of wrong answers that do not score less than the right answer. Ties therefore
count against the model. Scores are computed a few rows at a time, so memory is linear in the size of the set. Names,
and values without ties, are those of CLIP_benchmark (github.com/LAION-AI/CLIP_benchmark).

Shapes: N images, M texts, K classes, D joint width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

RECALL_AT = (1, 5, 10)
NOT_ASKED = -1  # the rank of an image without captions: left out of every mean

# Scores held at once (16 MiB in float32); the product of very few rows would round differently.
_CHUNK_SCORES = 1 << 22
_MIN_ROWS = 32


def classification_ranks(image_features: Tensor, classifier: Tensor, labels: Tensor) -> Tensor:
    """Return the rank of the true class: the number of other classes that score at least as high; 0 is right.

    Image features [N, D] have any floating type (scored in float32) and any length. The classifier [D, K] has a unit
    column per class. Labels are int64 [N]. The ranks are int64 [N] on the CPU.
    """
    ranks = [torch.empty(0, dtype=torch.int64)]
    for rows, scores in _score_chunks(image_features, classifier):
        ranks.append(_rank_of_column(scores, labels[rows].to(scores.device)).cpu())
    return torch.cat(ranks)


def retrieval_ranks(
    image_features: Tensor, text_features: Tensor, image_of_text: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the ranks of retrieval in both directions, with any number of captions per image.

    Args:
        image_features: [N, D], unit length, any floating type (scored in float32).
        text_features: [M, D], unit length.
        image_of_text: int64 [M], the image each caption belongs to.

    Returns:
        text→image, int64 [M]: how many other images score at least as high as the caption's own.
        image→text, int64 [N]: how many captions of other images score at least as high as the best own
        caption. An image without captions has `NOT_ASKED` here; in text→image it is a wrong answer like any other.
        Both on the CPU.
    """
    empty = torch.empty(0, dtype=torch.int64)
    text_to_image, image_to_text = [empty], [empty]
    for rows, scores in _score_chunks(text_features, image_features.mT):
        text_to_image.append(_rank_of_column(scores, image_of_text[rows].to(scores.device)).cpu())
    owner = image_of_text.to(image_features.device)
    for rows, scores in _score_chunks(image_features, text_features.mT):
        is_own = owner == torch.arange(rows.start, rows.stop, device=owner.device)[:, None]
        image_to_text.append(_rank_of_best(scores, is_own).cpu())
    return torch.cat(text_to_image), torch.cat(image_to_text)


def hits_at(ranks: Tensor, k: int) -> Tensor:
    """Return 1.0 where the right answer is among the top `k`, else 0.0, for each item that was asked."""
    return (ranks[ranks != NOT_ASKED] < k).double()


def retrieval_metrics(text_to_image: Tensor, image_to_text: Tensor) -> dict[str, float]:
    """`image_retrieval_recall@k` (mean over captions) and `text_retrieval_recall@k` (over images); NaN if no item was
    asked."""
    ranks = {"image": text_to_image, "text": image_to_text}
    return {
        f"{kind}_retrieval_recall@{k}": float(hits_at(own, k).mean())
        for kind, own in ranks.items()
        for k in RECALL_AT
    }


def mean_per_class(hits: Tensor, labels: Tensor) -> float:
    """Mean of the `hits` [N] of each class that occurs in `labels` [N], averaged over those classes."""
    classes, index, counts = torch.unique(labels.cpu(), return_inverse=True, return_counts=True)
    right = torch.zeros(len(classes), dtype=torch.float64).index_add_(0, index, hits)
    return float((right / counts).mean())


def chance_at(k: int, candidates: int, right: int = 1) -> float:
    """Probability that a random order has one of its `right` answers in the top `k` (hypergeometric)."""
    k = min(k, candidates)
    return 1.0 - math.comb(candidates - right, k) / math.comb(candidates, k)


def chance_of_image_to_text(k: int, image_of_text: Tensor) -> float:
    """`text_retrieval_recall@k` of a random order: the mean of `chance_at` over images with captions."""
    captions = torch.unique(image_of_text, return_counts=True)[1]
    sizes, images = torch.unique(captions, return_counts=True)
    chances = [chance_at(k, len(image_of_text), int(size)) for size in sizes]
    return sum(chance * int(count) for chance, count in zip(chances, images, strict=True)) / int(images.sum())


def _score_chunks(queries: Tensor, candidates: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Rows of `queries @ candidates` in float32, a bounded number at a time."""
    candidates = candidates.float()
    step = max(_MIN_ROWS, _CHUNK_SCORES // max(1, candidates.shape[1]))
    for start in range(0, len(queries), step):
        rows = slice(start, min(start + step, len(queries)))
        yield rows, queries[rows].float() @ candidates


def _rank_of_column(scores: Tensor, right: Tensor) -> Tensor:
    """Count the other columns of [R, C] that do not score strictly less than column `right` [R]."""
    return scores.shape[1] - 1 - (scores < scores.gather(1, right[:, None])).sum(1)


def _rank_of_best(scores: Tensor, is_own: Tensor) -> Tensor:
    """Count the columns of [R, C] outside `is_own` that do not score strictly less than the best inside."""
    best = scores.masked_fill(~is_own, -torch.inf).amax(1, keepdim=True)
    ranks = (~is_own).sum(1) - ((scores < best) & ~is_own).sum(1)
    return ranks.masked_fill(~is_own.any(1), NOT_ASKED)

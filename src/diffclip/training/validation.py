"""Retrieval on the validation split during training, and the correlation of each differential layer's two maps.

Every process embeds its share of the images; all get the same scores. A correlation near 1 says that both maps look at
the same places, so that the difference cancels what they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.transforms import EvalTransform
from diffclip.errors import Fault, InputError
from diffclip.evaluation.embed import embed_captioned, evaluating
from diffclip.evaluation.metrics import retrieval_metrics, retrieval_ranks
from diffclip.focus.maps import correlation_by_layer
from diffclip.model import CLIP
from diffclip.tokenizer import Tokenizer
from diffclip.training.distributed import all_do, share, whole_model
from diffclip.training.recipe import Recipe

# images, each with its first caption, whose maps are correlated
_WITH_MAPS = 32


@dataclass(frozen=True)
class Validation:
    """The findings of a validation, the same in every process.

    `scores` are the numbers of `pictures` and `captions` that could be read, the six recalls of
    `diffclip.evaluation.retrieval` and `score`, their mean. `map_correlation` is the correlation of A1 with A2 on the
    first 32 images by tower ("visual", "text"), a number a layer, none of a plain tower. `faults` are broken images.
    """

    scores: dict[str, float]
    map_correlation: dict[str, list[float]]
    faults: list[Fault]


class _Share(NamedTuple):
    """The images that a process could read: their places in the set, embeddings [N, D], the number of captions of each,
    their embeddings [M, D], and of the first 32 images the correlations of maps by tower, [n, layers]."""

    places: list[int]
    images: Tensor
    counts: list[int]
    texts: Tensor
    correlations: dict[str, Tensor]


def validate(
    fabric: Any, model: CLIP, data: EvaluationSet, tokenizer: Tokenizer, recipe: Recipe
) -> Validation:
    """Embed the images and captions of `data` in all processes together, and score them.

    An error in one process is raised in all of them.

    Raises:
        InputError: no image can be read, or an embedding is not finite.
    """
    broken: list[Fault] = []
    places = list(range(fabric.global_rank, len(data), fabric.world_size))
    batch_size = min(recipe.micro_batch or recipe.batch_size, recipe.batch_size // fabric.world_size)
    with whole_model(model):
        mine = all_do(
            fabric,
            lambda: _embed(model, data, tokenizer, recipe, places, batch_size, broken) if places else None,
        )
    parts = [part for part in share(fabric, mine) if part is not None]
    faults = [fault for part in share(fabric, broken) for fault in part]
    if not parts:
        raise InputError(f"every image in {data.source} is broken: give another data.val")
    # in the order of the set, so that ties and sums fall as they do in one process
    order = torch.tensor([place for part in parts for place in part.places]).argsort().tolist()
    images = torch.cat([part.images for part in parts])[order]
    by_image = [own for part in parts for own in torch.split(part.texts, part.counts)]
    texts = torch.cat([by_image[i] for i in order])
    owners = torch.arange(len(order)).repeat_interleave(torch.tensor([len(by_image[i]) for i in order]))
    recalls = retrieval_metrics(*retrieval_ranks(images, texts, owners))
    read = {"pictures": len(images), "captions": len(texts)}
    scores = read | recalls | {"score": sum(recalls.values()) / len(recalls)}
    correlation = {}
    for tower in ("visual", "text"):
        rows = {
            place: row
            for part in parts
            for place, row in zip(part.places, part.correlations[tower], strict=False)
        }
        first = [rows[place] for place in sorted(rows)[:_WITH_MAPS]]
        correlation[tower] = torch.stack(first).mean(0).tolist()
    return Validation(scores, correlation, [*data.faults, *faults])


def _embed(
    model: CLIP,
    data: EvaluationSet,
    tokenizer: Tokenizer,
    recipe: Recipe,
    places: list[int],
    batch_size: int,
    broken: list[Fault],
) -> _Share | None:
    """Embed the images at `places` with their captions; None where none of them can be read (see `broken`)."""
    part = replace(
        data,
        indices=[data.indices[place] for place in places],
        captions=[data.captions[place] for place in places],
        faults=broken,
    )
    transform = EvalTransform(model.config.vision.image_size, model.config.preprocess)
    workers = 0 if recipe.data.memory else recipe.data.workers  # decoded images stay in this process
    batches = part.batches(transform, batch_size, workers, recipe.data.timeout)
    read: list[int] = []
    with_maps: list[Tensor] = []

    def captioned() -> Iterator[tuple[Tensor, list[list[str]]]]:
        for batch in batches:
            with_maps.extend(batch.images[: max(0, _WITH_MAPS - len(read))])
            read.extend(places[position] for position in batch.positions)
            yield batch.images, batch.captions or []

    with evaluating(model):
        try:
            images, texts, owners = embed_captioned(model, tokenizer, captioned())
        except InputError:
            if read:
                raise
            return None  # all of this share is broken; the others may have read theirs
    tokens = tokenizer([data.captions[place][0] for place in read[:_WITH_MAPS]])
    correlations = {
        "visual": correlation_by_layer(model, "visual", torch.stack(with_maps)),
        "text": correlation_by_layer(model, "text", tokens),
    }
    counts = owners.bincount(minlength=len(read)).tolist()
    return _Share(read, images.cpu(), counts, texts.cpu(), correlations)

"""Retrieval on the validation split during training: every process embeds its share, and all get the scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffclip.data.evaluation_set import evaluation_batches
from diffclip.data.evaluation_sets import EvaluationSet
from diffclip.data.samples import Fault
from diffclip.data.transforms import eval_transform
from diffclip.errors import InputError
from diffclip.evaluation.embed import embed_captioned, evaluating
from diffclip.evaluation.metrics import retrieval_metrics, retrieval_ranks
from diffclip.model import CLIP
from diffclip.tokenizer import Tokenizer
from diffclip.training.correlation import image_correlations, mean_of_first, text_correlations
from diffclip.training.distributed import whole_model
from diffclip.training.exchange import share, share_or_raise, tried
from diffclip.training.recipe import Recipe

# pictures, each with its first caption, whose maps are looked at
_WITH_MAPS = 32


@dataclass(frozen=True)
class Validation:
    """What a validation finds, the same in every process.

    `scores` are the numbers of `pictures` and `captions` that could be read, the six recalls of
    `diffclip.evaluation.retrieval` and `score`, their mean. `map_correlation` is that of A1 with A2 on the first 32 of
    the pictures by tower ("visual", "text"), a number a layer, none of a plain tower. `faults` are the broken pictures.
    """

    scores: dict[str, float]
    map_correlation: dict[str, list[float]]
    faults: list[Fault]


@dataclass(frozen=True)
class _Share:
    """Some pictures: their places in the set, embeddings [N, D], those of their captions [M, D], whose captions [M];
    and of the first 32 of them the correlations of maps by tower, [n, layers]."""

    places: list[int]
    images: Tensor
    texts: Tensor
    owners: Tensor
    correlations: dict[str, Tensor]


def validate(
    fabric: Any, model: CLIP, data: EvaluationSet, tokenizer: Tokenizer, recipe: Recipe
) -> Validation:
    """Embed the pictures and captions of `data` in all processes together, and score them.

    An error in one process is raised in all of them.

    Raises:
        InputError: no picture can be read, or an embedding is not finite.
    """
    broken: list[Fault] = []
    rank, world = fabric.global_rank, fabric.world_size
    with whole_model(model):
        mine, failed = tried(lambda: _embed_share(model, data, tokenizer, recipe, broken, rank, world))
    parts = [part for part in share_or_raise(fabric, failed or mine) if part is not None]
    faults = [fault for part in share(fabric, broken) for fault in part]
    if not parts:
        raise InputError(f"every picture in {data.source} is broken: give another data.val")
    order = torch.tensor([place for part in parts for place in part.places]).argsort()
    images = torch.cat([part.images for part in parts])
    ends = torch.tensor([0, *(len(part.places) for part in parts)]).cumsum(0)
    owners = torch.cat([part.owners + start for part, start in zip(parts, ends, strict=False)])
    # in the order of the set, so that ties fall as they do in one process
    rank_of = order.argsort()
    owners = rank_of[owners]
    texts = torch.cat([part.texts for part in parts])
    by_owner = owners.argsort(stable=True)
    recalls = retrieval_metrics(*retrieval_ranks(images[order], texts[by_owner], owners[by_owner]))
    read = {"pictures": len(images), "captions": len(texts)}
    scores = read | recalls | {"score": sum(recalls.values()) / len(recalls)}
    return Validation(scores, _map_correlation(parts), faults)


def _map_correlation(parts: list[_Share]) -> dict[str, list[float]]:
    return {
        tower: mean_of_first(
            [place for part in parts for place in part.places[: len(part.correlations[tower])]],
            torch.cat([part.correlations[tower] for part in parts]),
            _WITH_MAPS,
        )
        for tower in parts[0].correlations
    }


def _embed_share(
    model: CLIP,
    data: EvaluationSet,
    tokenizer: Tokenizer,
    recipe: Recipe,
    broken: list[Fault],
    rank: int,
    world: int,
) -> _Share | None:
    """Every `world`-th picture with its captions, embedded; None where none of them can be read, which is told in
    `broken`."""
    places = list(range(rank, len(data), world))
    if not places:
        return None
    transform = eval_transform(model.config.vision.image_size, model.config.preprocess)
    read: list[int] = []
    first: list[Tensor] = []
    batches = evaluation_batches(
        data.source,
        [data.indices[place] for place in places],
        transform,
        _batch_size(recipe, world),
        broken,
        recipe.data.workers,
        recipe.data.timeout,
    )

    def captioned() -> Any:
        for batch in batches:
            here = [places[position] for position in batch.positions]
            first.extend(batch.images[: max(0, _WITH_MAPS - len(read))])
            read.extend(here)
            yield batch.images, [data.captions[place] for place in here]

    with evaluating(model):
        try:
            images, texts, owners = embed_captioned(model, tokenizer, captioned())
        except InputError:
            if read:
                raise
            return None  # all of this share is broken; the others may have read theirs
    tokens = tokenizer([data.captions[place][0] for place in read[:_WITH_MAPS]])
    correlations = {
        "visual": image_correlations(model, torch.stack(first)),
        "text": text_correlations(model, tokens),
    }
    return _Share(read, images.cpu(), texts.cpu(), owners, correlations)


def _batch_size(recipe: Recipe, world: int) -> int:
    return min(recipe.micro_batch or recipe.batch_size, recipe.batch_size // world)

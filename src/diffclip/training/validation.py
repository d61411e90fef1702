"""Retrieval on the validation split during training, and the correlation of each differential layer's two maps.

Every process embeds its share of the images; all get the same scores. A correlation near 1 says that both maps look at
the same places, so that the difference cancels what they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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


def validate(
    fabric: Any, model: CLIP, data: EvaluationSet, tokenizer: Tokenizer, recipe: Recipe
) -> Validation:
    """Embed the images and captions of `data` in all processes together, and score them.

    An error in one process is raised in all of them.

    Raises:
        InputError: no image can be read, or an embedding is not finite.
    """
    places = list(range(fabric.global_rank, len(data), fabric.world_size))
    with whole_model(model):
        mine = all_do(fabric, lambda: _embed(model, data, places, tokenizer, recipe, fabric.world_size))
    shares = share(fabric, mine)
    faults = [*data.faults, *(fault for _, broken in shares for fault in broken)]
    parts = [found for found, _ in shares if found]
    if not parts:
        raise InputError(f"every image in {data.source} is broken: give another data.val")
    # in the order of the set, so that ties and sums fall as they do in one process
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    read, by_image = whole["images of"].sort()
    owners, by_text = whole["texts of"].sort(stable=True)
    images, texts = whole["images"][by_image], whole["texts"][by_text]
    recalls = retrieval_metrics(*retrieval_ranks(images, texts, torch.searchsorted(read, owners)))
    counts = {"pictures": len(images), "captions": len(texts)}
    scores = counts | recalls | {"score": sum(recalls.values()) / len(recalls)}
    with_maps = whole["maps of"].argsort()[:_WITH_MAPS]
    correlation = {tower: whole[tower][with_maps].mean(0).tolist() for tower in ("visual", "text")}
    return Validation(scores, correlation, faults)


def _embed(
    model: CLIP, data: EvaluationSet, places: list[int], tokenizer: Tokenizer, recipe: Recipe, world: int
) -> tuple[dict[str, Tensor], list[Fault]]:
    """Embed the images at `places` with their captions: tensors by name, none where no image can be read; and the
    images that are broken.

    `images` [N, D], `texts` [M, D], and for the first 32 images the correlations of maps, `visual` and `text`
    [n, layers]; `images of`, `texts of` and `maps of` are the places in `data` that their rows belong to.
    """
    part = data.take(places)
    transform = EvalTransform(model.config.vision.image_size, model.config.preprocess)
    batch_size = min(recipe.micro_batch or recipe.batch_size, recipe.batch_size // world)
    workers = 0 if recipe.data.memory else recipe.data.workers  # decoded images stay in this process
    read: list[int] = []
    with_maps: list[Tensor] = []

    def captioned() -> Iterator[tuple[Tensor, list[list[str]]]]:
        for batch in part.batches(transform, batch_size, workers, recipe.data.timeout):
            with_maps.extend(batch.images[: max(0, _WITH_MAPS - len(read))])
            read.extend(places[position] for position in batch.positions)
            yield batch.images, batch.captions or []

    found = {}
    with evaluating(model):
        try:
            images, texts, owners = embed_captioned(model, tokenizer, captioned())
        except InputError:
            if read:
                raise
        else:
            tokens = tokenizer([data.captions[place][0] for place in read[:_WITH_MAPS]])
            own = torch.tensor(read)
            found = {
                "images": images.cpu(),
                "images of": own,
                "texts": texts.cpu(),
                "texts of": own[owners],
                "visual": correlation_by_layer(model, "visual", torch.stack(with_maps)),
                "text": correlation_by_layer(model, "text", tokens),
                "maps of": own[:_WITH_MAPS],
            }
    return found, part.faults[len(data.faults) :]

"""Retrieval on the validation split during training, and the correlation of each differential layer's two maps.

Every process embeds its share of the images; all get the same scores. A correlation near 1 says that both maps look at
the same places, so that the difference cancels what they share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diffclip.attention import AttentionMaps
from diffclip.data.evaluation_set import EvaluationSet, evaluation_batches
from diffclip.data.transforms import EvalTransform
from diffclip.errors import Fault, InputError
from diffclip.evaluation.embed import embed_captioned, evaluating
from diffclip.evaluation.metrics import retrieval_metrics, retrieval_ranks
from diffclip.focus import map_correlation, pearson, recording
from diffclip.model import CLIP
from diffclip.tokenizer import Tokenizer
from diffclip.training.distributed import all_do, share, whole_model
from diffclip.training.recipe import Recipe

# images, each with its first caption, whose maps are correlated
_WITH_MAPS = 32
# all maps of a tower are kept for so many inputs at once: 90 MB for ViT-B-16
_AT_ONCE = 4


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


@dataclass(frozen=True)
class _Share:
    """Some images: their places in the set, embeddings [N, D], those of their captions [M, D], whose captions [M];
    and of the first 32 of them the correlations of maps by tower, [n, layers]."""

    places: list[int]
    images: Tensor
    texts: Tensor
    owners: Tensor
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
    rank, world = fabric.global_rank, fabric.world_size
    with whole_model(model):
        mine = all_do(fabric, lambda: _embed_share(model, data, tokenizer, recipe, broken, rank, world))
    parts = [part for part in share(fabric, mine) if part is not None]
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
    correlation = {
        tower: mean_of_first(
            [place for part in parts for place in part.places[: len(part.correlations[tower])]],
            torch.cat([part.correlations[tower] for part in parts]),
            _WITH_MAPS,
        )
        for tower in parts[0].correlations
    }
    return Validation(scores, correlation, faults)


def _embed_share(
    model: CLIP,
    data: EvaluationSet,
    tokenizer: Tokenizer,
    recipe: Recipe,
    broken: list[Fault],
    rank: int,
    world: int,
) -> _Share | None:
    """Embed every `world`-th image with its captions; None where none of them can be read (see `broken`)."""
    places = list(range(rank, len(data), world))
    if not places:
        return None
    transform = EvalTransform(model.config.vision.image_size, model.config.preprocess)
    read: list[int] = []
    first: list[Tensor] = []
    batches = evaluation_batches(
        data.source,
        [data.indices[place] for place in places],
        transform,
        min(recipe.micro_batch or recipe.batch_size, recipe.batch_size // world),
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


def image_correlations(model: CLIP, images: Tensor) -> Tensor:
    """Pearson's correlation of A1 with A2 in the class token's row over the patches of `images` [n, 3, S, S]: float64
    [n, layers] on the CPU, the mean over heads; [n, 0] of a plain tower."""
    return _correlations(model, "visual", images, model.encode_image, lambda maps, _: map_correlation(maps))


def text_correlations(model: CLIP, tokens: Tensor) -> Tensor:
    """`image_correlations` of the text tower for `tokens` [n, L]: in the row of the end of each text over the tokens
    that it sees, the start and itself included."""

    def of_end(maps: AttentionMaps, own: Tensor) -> Tensor:
        assert maps.second is not None
        texts, ends = torch.arange(len(own), device=own.device), own.argmax(-1)
        first, second = maps.first[texts, :, ends], maps.second[texts, :, ends]
        seen = torch.arange(first.shape[-1], device=own.device) <= ends[:, None, None]
        return pearson(first, second, seen)

    return _correlations(model, "text", tokens, model.encode_text, of_end)


def mean_of_first(places: Sequence[int], values: Tensor, most: int) -> list[float]:
    """The mean of `values` [n, layers] over the `most` inputs with the least `places`, in their order: the same
    number, to the bit, in whatever order they come."""
    order = torch.tensor(places).argsort()[:most]
    means: list[float] = values[order].mean(0).tolist()
    return means


def _correlations(
    model: CLIP,
    tower: str,
    inputs: Tensor,
    encode: Callable[[Tensor], Tensor],
    of: Callable[[AttentionMaps, Tensor], Tensor],
) -> Tensor:
    if getattr(model.config, "vision" if tower == "visual" else "text").attention == "softmax":
        return torch.empty(len(inputs), 0, dtype=torch.float64)
    device = next(iter(model.parameters())).device
    found = []
    # blocks would be compiled once more for the recorded way
    with torch.compiler.set_stance("force_eager"):
        for part in torch.split(inputs.to(device), _AT_ONCE):
            with recording(model, tower) as seen:
                encode(part)
            found.append(torch.stack([of(maps, part).mean(-1) for maps in seen], dim=-1))
    return torch.cat(found).cpu()

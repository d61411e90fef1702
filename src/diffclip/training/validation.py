"""Retrieval on the validation split during training, and the correlation of each differential layer's two maps.

A correlation near 1 means that both maps attend to the same places, so that their difference cancels the common part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.errors import Fault, InputError, NotFiniteError
from diffclip.evaluation.embed import check_embeddings, embed_images, embed_texts, evaluation_mode
from diffclip.evaluation.metrics import retrieval_metrics, retrieval_ranks
from diffclip.maps.attention_maps import correlation_by_layer
from diffclip.model import CLIP, empty_model
from diffclip.preprocess import EvalTransform
from diffclip.tokenizer import Tokenizer
from diffclip.training.distributed import gather, shared_errors
from diffclip.training.optimizer import is_share
from diffclip.training.recipe import Recipe

# number of images, each with its first caption, whose maps are correlated
_WITH_MAPS = 32


@dataclass(frozen=True)
class Validation:
    """The results of a validation, the same in every process.

    `scores` holds the numbers of `images` and `captions` that could be read, the six recalls of the task `retrieval`,
    and `score`, the mean of the recalls. `map_correlation` is the correlation of A1 with A2 on the first 32 images by
    tower ("visual", "text"): one number per layer, and none for a plain tower. `faults` are broken images.
    """

    scores: dict[str, float]
    map_correlation: dict[str, list[float]]
    faults: list[Fault]


def validate(
    fabric: Any, model: CLIP, data: EvaluationSet, tokenizer: Tokenizer, recipe: Recipe
) -> Validation:
    """Embed the images and captions of `data`, each process its share, and score them in the first process. All
    processes call this, and all raise `InputError` if no image can be read or an embedding is not finite."""
    rank, world = fabric.global_rank, fabric.world_size
    whole = _unshard(model, recipe.attention_backend)
    start, end = (len(data) * number // world for number in (rank, rank + 1))
    with shared_errors(fabric):
        share = _embed(whole, data.take(range(start, end)), tokenizer, recipe, world)
    shares = gather(fabric, share)
    with shared_errors(fabric):
        result = _score(whole, tokenizer, shares) if rank == 0 else None
    return gather(fabric, result)[0]  # type: ignore[return-value]


def _unshard(model: CLIP, attention_backend: str) -> CLIP:
    """Return the model itself, or for a sharded model a copy with all parameters; all processes must call this.

    With a sharded model every process must make the same forward passes, or the next backward pass hangs.
    """
    if not any(map(is_share, model.parameters())):
        return model
    state: Any = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    whole = empty_model(model.config, attention_backend)
    whole.load_state_dict(state, assign=True)
    return whole.to(model.logit_scale.device)


@dataclass
class _Share:
    """The embeddings of one process: features, the number of captions of each image, the first images with a caption,
    broken images, and the error if no image of its share can be read."""

    images: list[Tensor] = field(default_factory=list)
    texts: list[Tensor] = field(default_factory=list)
    captions: list[int] = field(default_factory=list)
    examples: list[tuple[Tensor, str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    broken: InputError | None = None


def _embed(model: CLIP, data: EvaluationSet, tokenizer: Tokenizer, recipe: Recipe, world: int) -> _Share:
    """Embed all of `data`, in batches as large as a forward pass in training."""
    transform = EvalTransform(model.config.vision.image_size, model.config.preprocess)
    batch_size = min(recipe.micro_batch or recipe.batch_size, recipe.batch_size // world)
    share, texts = _Share(), list[str]()
    with evaluation_mode(model):
        try:
            for batch in data.batches(transform, batch_size, recipe.data.workers, recipe.data.timeout):
                captions = batch.captions or []
                share.images.append(check_embeddings(embed_images(model, batch.images), "images").cpu())
                share.captions += map(len, captions)
                texts += [text for group in captions for text in group]
                pairs = zip(batch.images, (group[0] for group in captions), strict=True)
                share.examples += list(pairs)[: _WITH_MAPS - len(share.examples)]
        except NotFiniteError:
            raise
        except InputError as error:  # all are broken, perhaps only here
            share.broken = error
        if texts:
            share.texts.append(embed_texts(model, tokenizer, texts).cpu())
    share.faults = data.faults
    return share


def _score(model: CLIP, tokenizer: Tokenizer, shares: Sequence[_Share]) -> Validation:
    """Score what all processes have embedded."""
    if not any(share.images for share in shares):
        raise next(share.broken for share in shares if share.broken)
    device = model.logit_scale.device
    images = torch.cat([part for share in shares for part in share.images]).to(device)
    texts = torch.cat([part for share in shares for part in share.texts]).to(device)
    counts = torch.tensor([count for share in shares for count in share.captions])
    partners = torch.arange(len(counts)).repeat_interleave(counts)
    recalls = retrieval_metrics(*retrieval_ranks(images, texts, partners))
    examples = [pair for share in shares for pair in share.examples][:_WITH_MAPS]
    pictured, described = zip(*examples, strict=True)
    inputs = {"visual": torch.stack(pictured), "text": tokenizer(described)}
    with evaluation_mode(model):
        correlation = {}
        for tower, tower_inputs in inputs.items():
            correlation[tower] = correlation_by_layer(model, tower, tower_inputs).mean(0).tolist()
    scores = {"images": len(images), "captions": len(texts)} | recalls
    faults = dict.fromkeys(fault for share in shares for fault in share.faults)
    return Validation(scores | {"score": sum(recalls.values()) / len(recalls)}, correlation, list(faults))

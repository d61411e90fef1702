"""Retrieval on the validation split during training, and the correlation of each differential layer's two maps.

A correlation near 1 means that both maps attend to the same places, so that their difference cancels the common part.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.errors import Fault
from diffclip.evaluation.embed import embed_captioned, evaluation_mode
from diffclip.evaluation.metrics import retrieval_metrics, retrieval_ranks
from diffclip.maps.attention import correlation_by_layer
from diffclip.model import CLIP
from diffclip.preprocess import EvalTransform
from diffclip.tokenizer import Tokenizer
from diffclip.training.distributed import run_on_first
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
    """Embed the images and captions of `data` in the first process, and score them. All processes call this, and all
    raise `InputError` if no image can be read or an embedding is not finite."""
    # as many images at a time as a forward pass in training
    batch_size = min(recipe.micro_batch or recipe.batch_size, recipe.batch_size // fabric.world_size)
    whole = _unshard(model, recipe.attention_backend)
    return run_on_first(fabric, lambda: _validate(whole, data, tokenizer, recipe, batch_size))


def _unshard(model: CLIP, attention_backend: str) -> CLIP:
    """Return the model itself, or for a sharded model a copy with all parameters; all processes must call this.

    With a sharded model every process must make the same forward passes, or the next backward pass hangs.
    """
    if not any(map(is_share, model.parameters())):
        return model
    state: Any = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    with torch.device("meta"):
        whole = CLIP(model.config, attention_backend=attention_backend, seed=0)
    whole.load_state_dict(state, assign=True)
    return whole


def _validate(
    model: CLIP, data: EvaluationSet, tokenizer: Tokenizer, recipe: Recipe, batch_size: int
) -> Validation:
    transform = EvalTransform(model.config.vision.image_size, model.config.preprocess)
    with_maps: list[Tensor] = []
    captions: list[str] = []

    def captioned() -> Iterator[tuple[Tensor, list[list[str]]]]:
        for batch in data.batches(transform, batch_size, recipe.data.workers, recipe.data.timeout):
            batch_captions = batch.captions or []
            with_maps.extend(batch.images[: _WITH_MAPS - len(with_maps)])
            captions.extend(texts[0] for texts in batch_captions)
            yield batch.images, batch_captions

    with evaluation_mode(model):
        images, texts, owners = embed_captioned(model, tokenizer, captioned())
        inputs = {"visual": torch.stack(with_maps), "text": tokenizer(captions[:_WITH_MAPS])}
        correlation = {
            tower: correlation_by_layer(model, tower, tower_inputs).mean(0).tolist()
            for tower, tower_inputs in inputs.items()
        }
    recalls = retrieval_metrics(*retrieval_ranks(images, texts, owners))
    counts = {"images": len(images), "captions": len(texts)}
    scores = counts | recalls | {"score": sum(recalls.values()) / len(recalls)}
    return Validation(scores, correlation, list(data.faults))

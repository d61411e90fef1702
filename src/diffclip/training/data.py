"""The data of a recipe: its training shards as a loader, its validation split."""

from __future__ import annotations

import torch

from diffclip.data.catalog import EvaluationSet, caption_set
from diffclip.data.corpus import open_corpus
from diffclip.data.loader import CaptionLoader
from diffclip.data.picture_memory import PictureMemory
from diffclip.data.resident import ResidentLoader
from diffclip.data.shards import Shards, expand_shards
from diffclip.data.transforms import train_transform
from diffclip.tokenizer import Tokenizer
from diffclip.training.recipe import Recipe


def open_training_data(
    recipe: Recipe,
    rank: int = 0,
    world: int = 1,
    memory: PictureMemory | None = None,
    device: torch.device | None = None,
) -> CaptionLoader | ResidentLoader:
    """The training shards of `recipe` as a loader of this process's share of uint8 batches.

    With `memory` the pictures are held there, decoded, and on `device` if that is a GPU; no workers are needed then.

    Raises:
        InputError: shards are missing or empty, hold fewer samples than a batch, a batch cannot be shared out, or
            `memory` cannot hold the pictures.
    """
    config, data = recipe.config(), recipe.data
    corpus = open_corpus(
        data.model_dump()["train"], data.caption_key, data.window, data.cache, data.cache_gb, data.timeout
    )
    transform = train_transform(config.vision.image_size, config.preprocess, data.scale, data.flip)
    tokenizer = Tokenizer(config.text)
    if memory is not None:
        return memory.loader(
            corpus, transform, tokenizer, recipe.batch_size, recipe.seed, rank, world, device
        )
    return CaptionLoader(
        corpus,
        transform,
        tokenizer,
        recipe.batch_size,
        recipe.seed,
        data.workers,
        rank=rank,
        world=world,
        timeout=data.timeout,
    )


def open_validation_data(recipe: Recipe) -> EvaluationSet | None:
    """The validation split of `recipe`, or None where it has none.

    Raises:
        InputError: shards are missing, empty or without captions.
    """
    if recipe.data.val is None:
        return None
    return caption_set("validation", "val", Shards(expand_shards(recipe.data.val)), recipe.data.caption_key)

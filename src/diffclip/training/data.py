"""The data of a recipe: its training shards as a loader, its validation split."""

from __future__ import annotations

import torch

from diffclip.data.corpus import open_corpus
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.evaluation_sets import caption_set
from diffclip.data.loader import CaptionLoader
from diffclip.data.memory import MemoryLoader
from diffclip.data.shards import Shards, expand_shards
from diffclip.data.transforms import TrainTransform
from diffclip.tokenizer import Tokenizer
from diffclip.training.recipe import Recipe


def open_training_data(
    recipe: Recipe, rank: int = 0, world: int = 1, device: torch.device | None = None
) -> CaptionLoader | MemoryLoader:
    """The training shards of `recipe` as a loader of this process's share of uint8 batches.

    Nothing is written beside the shards before the first epoch starts. With `data.memory` all images are decoded here
    and kept, on `device` if that is a GPU, which rounds the crops in another way; no workers are needed then.

    Raises:
        InputError: shards are missing or empty, hold fewer samples than a batch, a batch cannot be shared out, or
            `data.memory` is asked for data that is remote or read window by window.
    """
    config, data = recipe.config(), recipe.data
    corpus = open_corpus(data.train, data.caption_key, data.window, data.cache, data.cache_gb)
    transform = TrainTransform(config.vision.image_size, config.preprocess, data.scale, data.flip)
    tokenizer, size, seed = Tokenizer(config.text), recipe.batch_size, recipe.seed
    if data.memory:
        return MemoryLoader(corpus, transform, tokenizer, size, seed, rank, world, device)
    return CaptionLoader(
        corpus, transform, tokenizer, size, seed, data.workers, rank, world, timeout=data.timeout
    )


def open_validation_data(recipe: Recipe) -> EvaluationSet | None:
    """The validation split of `recipe`, or None where it has none; with `data.memory` its images stay decoded.

    Raises:
        InputError: shards are missing, empty or without captions.
    """
    if recipe.data.val is None:
        return None
    shards = Shards(expand_shards(recipe.data.val), keep_images=recipe.data.memory)
    return caption_set("validation", "val", shards, recipe.data.caption_key)

"""Endless normalised batches from shards: through our loader, and through OpenCLIP's own."""

from __future__ import annotations

import importlib.util
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from diffclip.config import OPENAI_MEAN, OPENAI_STD, PreprocessConfig, named_config
from diffclip.data.transforms import normalise, train_transform
from diffclip.tokenizer import Tokenizer

Batch = tuple[Tensor, Tensor]
MODEL, IMAGE_SIZE, SCALE, SEED = "ViT-B-16", 224, (0.5, 1.0), 0
PREPROCESS = PreprocessConfig(mean=OPENAI_MEAN, std=OPENAI_STD, interpolation="bicubic")


class Clock:
    """A function that counts the processor seconds it takes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function, self.seconds = function, 0.0

    def __call__(self, *arguments: Any) -> Any:
        started = time.process_time()
        result = self.function(*arguments)
        self.seconds += time.process_time() - started
        return result


@dataclass
class Feed:
    """Batches that never end, how many an epoch has, and the clocks of the parts that run in this process."""

    batches: Iterator[Batch]
    batches_per_epoch: int
    clocks: dict[str, Clock]


def ours(shards: Path, batch: int, workers: int) -> Feed:
    """Pictures come as bytes and are normalised here, into memory that is kept, as a device keeps its own."""
    from diffclip.data.corpus import open_corpus
    from diffclip.data.loader import CaptionLoader

    transform = Clock(train_transform(IMAGE_SIZE, PREPROCESS, SCALE))
    tokenizer = Clock(Tokenizer(named_config(f"CLIP-{MODEL}").text))
    finish = Clock(normalise)
    loader = CaptionLoader(open_corpus(str(shards)), transform, tokenizer, batch, SEED, workers)

    def forever() -> Iterator[Batch]:
        epoch, kept = 0, torch.empty(batch, 3, IMAGE_SIZE, IMAGE_SIZE)
        while True:
            for found in loader.epoch(epoch):
                yield finish(found.images, PREPROCESS, kept[: len(found)]), found.tokens
            epoch += 1

    clocks = {"crop and resize": transform, "tokenise": tokenizer, "normalise": finish}
    return Feed(forever(), loader.batches_per_epoch, clocks)


def openclip(shards: Path, batch: int, workers: int) -> Feed:
    """The data set, transform and tokenizer of OpenCLIP's training program."""
    import open_clip
    from open_clip.transform import image_transform

    transform = Clock(
        image_transform(
            IMAGE_SIZE,
            True,
            PREPROCESS.mean,
            PREPROCESS.std,
            aug_cfg={"scale": SCALE},
            interpolation="bicubic",
        )
    )
    tokenizer = Clock(open_clip.get_tokenizer(MODEL))
    files = sorted(map(str, shards.glob("*.tar")))
    options = Namespace(
        train_data=files,
        train_num_samples=sum(map(_samples, files)),
        train_data_upsampling_factors=None,
        dataset_resampled=False,
        seed=SEED,
        batch_size=batch,
        workers=workers,
        world_size=1,
    )
    data = _training_data().get_wds_dataset(
        options, transform, is_train=True, floor=True, tokenizer=tokenizer
    )

    def forever() -> Iterator[Batch]:
        epoch = 0
        while True:
            data.set_epoch(epoch)
            yield from data.dataloader
            epoch += 1

    clocks = {"crop, resize, normalise": transform, "tokenise": tokenizer}
    return Feed(forever(), data.dataloader.num_batches, clocks)


FEEDS: dict[str, Callable[[Path, int, int], Feed]] = {"ours": ours, "OpenCLIP": openclip}


def _samples(shard: str) -> int:
    import tarfile

    with tarfile.open(shard) as tar:
        return sum(name.endswith(".txt") for name in tar.getnames())


def _training_data() -> ModuleType:
    """OpenCLIP's module of data sets; it imports pandas, which only its CSV files need."""
    import torchvision.datasets  # noqa: F401  # it looks for what is installed, and must not find the stand-in

    stand_in = importlib.util.find_spec("pandas") is None
    if stand_in:
        sys.modules["pandas"] = ModuleType("pandas")
        sys.modules["pandas"].__spec__ = ModuleSpec("pandas", None)
    try:
        from open_clip_train import data
    finally:
        if stand_in:
            del sys.modules["pandas"]
    module: ModuleType = data
    return module

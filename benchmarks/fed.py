"""Training steps fed by our loader: how large a share of the time goes into waiting for data."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import torch

from benchmarks.models import config_of
from benchmarks.steps import Batch

FED = "training from shards"
_DIFFERENT = 128  # images that are drawn; the others repeat them
_TIMED = 24  # steps at most, after those whose batches were read while nothing ran
_LEAST = 3


def make_up(folder: Path, batch: int, workers: int) -> None:
    """Shards in `folder` with a sample for every place of the batches that a model is fed."""
    from benchmarks.loader import make_shards

    make_shards(folder, batch * (_untimed(workers) + _TIMED), shards=max(1, workers), different=_DIFFERENT)


def feed(
    step: Callable[[Batch], None],
    shards: Path,
    size: str | None,
    batch: int,
    workers: int,
    device: torch.device,
    left: Callable[[], float],
) -> dict[str, Any]:
    """Samples a second (median and quartiles over the steps) and the share of their time spent waiting for a batch.

    A step is over when the device is done with it. `left` is in seconds.
    """
    steps = _steps(step, shards, size, batch, workers, device)
    started = time.perf_counter()
    for _ in range(_untimed(workers)):
        next(steps)
    first, waits, wholes = time.perf_counter() - started, [], []
    while len(wholes) < _LEAST or (len(wholes) < _TIMED and left() > 0):
        wait, whole = next(steps)
        waits.append(wait)
        wholes.append(whole)
    steps.close()
    slow, median, fast = statistics.quantiles(wholes, n=4, method="inclusive")[::-1]
    return {
        "samples_per_second": batch / median,
        "low": batch / slow,
        "high": batch / fast,
        "samples": len(wholes),
        "data_wait": sum(waits) / sum(wholes),
        "first_s": first,
    }


def _untimed(workers: int) -> int:
    return 2 * workers + 2  # a worker reads two batches ahead


def _steps(
    step: Callable[[Batch], None],
    shards: Path,
    size: str | None,
    batch: int,
    workers: int,
    device: torch.device,
) -> Generator[tuple[float, float], None, None]:
    """Take steps on and on; the seconds that each waited for data, and its seconds in all."""
    from diffclip.config import PreprocessConfig
    from diffclip.data.corpus import Corpus
    from diffclip.data.loader import CaptionLoader
    from diffclip.data.transforms import TrainTransform, normalize
    from diffclip.tokenizer import Tokenizer

    config, preprocess = config_of("CLIP", size), PreprocessConfig()
    transform = TrainTransform(config.vision.image_size, preprocess)
    corpus = Corpus(str(shards))
    loader = CaptionLoader(corpus, transform, Tokenizer(config.text), batch, seed=0, workers=workers)
    epoch = 0
    while True:
        batches = loader.epoch(epoch)
        while True:
            started = time.perf_counter()
            found = next(batches, None)
            if found is None:
                break
            wait = time.perf_counter() - started
            step((normalize(found.images.to(device), preprocess), found.tokens.to(device)))
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            yield wait, time.perf_counter() - started
        epoch += 1

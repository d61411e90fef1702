"""What the data of a large run costs a process before its first batch: orders of an epoch, and indexes of shards."""

from __future__ import annotations

import os
import sys
import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.feeds import IMAGE_SIZE, PREPROCESS, SCALE
from benchmarks.made_shards import make_shards
from diffclip.config import named_config
from diffclip.data.corpus import open_corpus
from diffclip.data.index_files import read_index
from diffclip.data.loader import CaptionLoader
from diffclip.data.order import Epoch, Layout, Steps, WholeEpoch, WindowedEpoch
from diffclip.data.transforms import train_transform
from diffclip.tokenizer import Tokenizer

WORLDS = (1, 2, 4, 8, 64)
A_SHARD, WINDOW = 10_000, 16


def orders(whole: tuple[int, ...], windowed: tuple[int, ...], world: int, batch: int) -> list[dict[str, Any]]:
    """Seconds until the first batch in the middle of an epoch has its order, the most memory meanwhile and what stays,
    for epochs of so many samples as one permutation and in windows."""
    found = []
    for samples, window in [*((n, None) for n in whole), *((n, WINDOW) for n in windowed)]:
        layout = Layout([[A_SHARD] * (samples // A_SHARD)], [1.0])
        steps = Steps(layout.total // batch, batch, world // 2, world)

        def draw(layout: Layout = layout, steps: Steps = steps, window: int | None = window) -> Any:
            epoch: Epoch = (
                WholeEpoch(layout, steps, 0, 0)
                if window is None
                else WindowedEpoch(layout, steps, window, 0, 0)
            )
            batches = epoch.batches(steps.batches // 2)
            next(batches)
            return epoch, batches

        seconds, most, kept = _traced(draw)
        found.append(
            {"samples": layout.total, "window": window, "seconds": seconds, "most": most, "kept": kept}
        )
    return found


def same_samples(samples: int, batch: int, seed: int = 0) -> dict[str, Any]:
    """Whether every batch of an epoch without a window is the same samples for any number of processes."""
    layout = Layout([[samples]], [1.0])
    batches = samples // batch
    wanted = list(WholeEpoch(layout, Steps(batches, batch, 0, 1), seed, 0).batches(0))
    same = True
    for world in WORLDS[1:]:
        parts = [
            WholeEpoch(layout, Steps(batches, batch, r, world), seed, 0).batches(0) for r in range(world)
        ]
        for one, together in zip(wanted, zip(*parts, strict=True), strict=True):
            same &= bool(np.array_equal(one, np.concatenate(together)))
    return {"worlds": list(WORLDS), "batches": batches, "samples": batches * batch, "same": same}


def indexes(folder: Path, shards: int, samples: int, batch: int) -> dict[str, Any]:
    """Seconds to open `shards` shards of `samples` samples for the first time and again, the bytes that stay in memory,
    and seconds to the first batch of an epoch and in the middle of one. Pictures are made once and linked."""
    make_shards(folder, samples, 1, different=min(32, samples))
    first = folder / "00000.tar"
    for number in range(1, shards):
        os.link(first, folder / f"{number:05d}.tar")
    told: dict[str, Any] = {
        "shards": shards,
        "samples": shards * samples,
        "bytes": first.stat().st_size * shards,
    }
    started = time.perf_counter()
    open_corpus(str(folder))
    told["first"] = time.perf_counter() - started
    for name, window in (("whole", None), ("windowed", WINDOW)):
        started = time.perf_counter()
        corpus = open_corpus(str(folder), window=window)
        told[name] = {"open": time.perf_counter() - started}
        for place, start in (("beginning", 0), ("middle", shards * samples // batch // 2)):
            config = named_config("CLIP-ViT-B-16").text
            transform = train_transform(IMAGE_SIZE, PREPROCESS, SCALE)
            loader = CaptionLoader(corpus, transform, Tokenizer(config), batch, seed=0)
            started = time.perf_counter()
            next(loader.epoch(0, start_batch=start))
            told[name][place] = time.perf_counter() - started
            loader.close()
        del corpus, loader
        told[name]["kept"] = _traced(partial(open_corpus, str(folder), window=window))[2]
    index = read_index(first)
    arrays = sum(column.nbytes for column in vars(index).values() if isinstance(column, np.ndarray))
    return told | {"batch": batch, "index_bytes": arrays, "members": len(index.blocks) / len(index)}


def _traced(work: Callable[[], Any]) -> tuple[float, int, int]:
    """Seconds of `work`, the most bytes that it allocates, and those that its result holds."""
    tracemalloc.start()
    try:
        started = time.perf_counter()
        result = work()
        seconds = time.perf_counter() - started
        kept, most = tracemalloc.get_traced_memory()
        sys.getrefcount(result)  # it lives until here
    finally:
        tracemalloc.stop()
    return seconds, most, kept

"""Pictures in memory: the time a batch takes, and a pass over a validation split, with and without.

    python -m benchmarks.resident [--shards FOLDER] [--batch 128] [--seconds 60] [--device cpu] [--output FOLDER]

Training batches come by turns from shards (`CaptionLoader` without workers), from memory with crops made one by one,
and from memory with a batch's crops made at once on the device; each lies on the device when its time is taken.
Validation goes through the split without keeping it, then several times keeping it. Writes resident.json
(resident_cuda.json on a GPU).
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.about import about, add_common_options, write_json
from diffclip.config import PreprocessConfig, TextConfig
from diffclip.data.catalog import caption_set
from diffclip.data.corpus import open_corpus
from diffclip.data.draws import draw_crops
from diffclip.data.loader import Batch, CaptionLoader
from diffclip.data.picture_memory import PictureMemory
from diffclip.data.pictures import evaluation_batches, keeping
from diffclip.data.resident import ResidentLoader
from diffclip.data.shards import Shards, expand_shards
from diffclip.data.transforms import eval_transform, train_transform
from diffclip.scenes import write_scenes
from diffclip.tokenizer import Tokenizer

SHARDS, ONE_BY_ONE, AT_ONCE = "from shards", "in memory, one by one", "in memory, at once"
SEED, CONTEXT, SCALE, FLIP = 0, 32, (0.5, 1.0), 0.5
# of the recipes for Flickr8k
FLICKR8K = Path(__file__).resolve().parents[2] / "shared" / "data" / "flickr8k"

Loader = CaptionLoader | ResidentLoader


class Feed:
    """Batches of a loader on a device, epoch after epoch; those that start one are told apart."""

    def __init__(self, loader: Loader, device: torch.device) -> None:
        self._loader, self._device = loader, device
        self._batches: Iterator[Batch] = iter(())
        self._epoch = 0

    def seconds(self) -> tuple[float, bool]:
        """How long the next batch takes, and whether it is the first of its epoch."""
        started, first = time.perf_counter(), False
        batch = next(self._batches, None)
        if batch is None:
            started, first = time.perf_counter(), True
            self._batches, self._epoch = self._loader.epoch(self._epoch), self._epoch + 1
            batch = next(self._batches)
        batch.images.to(self._device), batch.tokens.to(self._device)
        finish(self._device)
        return time.perf_counter() - started, first


def finish(device: torch.device) -> None:
    """Wait for what `device` still does."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def timed(work: Callable[[], Any], device: torch.device) -> tuple[float, Any]:
    """Seconds, and what `work` returns."""
    finish(device)
    started = time.perf_counter()
    done = work()
    finish(device)
    return time.perf_counter() - started, done


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "turns": len(values)}


def compare(loaders: dict[str, Loader], device: torch.device, seconds: float) -> dict[str, Any]:
    """Milliseconds a batch of each loader, by turns, and how many times as long batches from shards take."""
    feeds = {name: Feed(loader, device) for name, loader in loaders.items()}
    times: dict[str, list[float]] = {name: [] for name in feeds}
    starts: dict[str, list[float]] = {name: [] for name in feeds}
    ended = time.perf_counter() + seconds
    while time.perf_counter() < ended or len(times[SHARDS]) < 3:
        found = {name: feed.seconds() for name, feed in feeds.items()}
        for name, (took, first) in found.items():
            (starts if first else times)[name].append(took)
    known = times[SHARDS]
    return {
        name: {
            "milliseconds": spread([1e3 * value for value in own]),
            "first_milliseconds": 1e3 * statistics.median(starts[name]),
            "speed": spread([a / b for a, b in zip(known, own, strict=True)]),
        }
        for name, own in times.items()
    }


def drawing(size: int, samples: int) -> dict[str, float]:
    """Microseconds to draw the crop of a sample, by torch and for all samples together."""
    transform = train_transform(size, PreprocessConfig(), SCALE, FLIP)
    seeds, picture = np.arange(samples, dtype=np.uint64), torch.empty(3, size, size, dtype=torch.uint8)
    some = min(samples, 1000)
    started = time.perf_counter()
    for seed in seeds[:some].tolist():
        torch.default_generator.manual_seed(seed)
        transform.draw(picture)
    alone = (time.perf_counter() - started) / some
    started = time.perf_counter()
    draw_crops(transform, seeds, np.full((samples, 2), size))
    return {"alone": 1e6 * alone, "together": 1e6 * (time.perf_counter() - started) / samples}


def validation(shards: Path, size: int, memory: PictureMemory, device: torch.device) -> dict[str, Any]:
    """Seconds of a pass over a split without memory, the first with it, and those after it."""
    split = caption_set("validation", "val", Shards(expand_shards(str(shards))))
    transform = eval_transform(size, PreprocessConfig())

    def once(kept: bool) -> Callable[[], None]:
        def go() -> None:
            with keeping(memory.for_evaluation if kept else None):
                for batch in evaluation_batches(split.source, split.indices, transform, 128, []):
                    batch.images.to(device)

        return go

    before = [timed(once(False), device)[0]]
    first = timed(once(True), device)[0]
    again = []
    for _ in range(4):
        before.append(timed(once(False), device)[0])
        again.append(timed(once(True), device)[0])
    return {
        "pictures": len(split),
        "without": spread(before),
        "first": first,
        "again": spread(again),
        "speed": spread([a / b for a, b in zip(before[1:], again, strict=True)]),
    }


@contextmanager
def data(given: Path | None, samples: int, size: int) -> Iterator[tuple[Path, str]]:
    """A folder with the splits train and val, and what it is."""
    if given is not None or FLICKR8K.is_dir():
        folder = given or FLICKR8K
        yield folder, folder.name
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "scenes"
        write_scenes(folder, size=size, train=samples, val=max(2, samples // 6), test=2, seed=SEED)
        yield folder / "captions", "scenes"


def measure(options: argparse.Namespace, folder: Path, scratch: Path) -> dict[str, Any]:
    """All times, in one run."""
    device = torch.device(options.device)
    transform = train_transform(options.image_size, PreprocessConfig(), SCALE, FLIP)
    tokenizer = Tokenizer(TextConfig(context_length=CONTEXT))
    tokenizer("imports what it needs")
    corpus = open_corpus(str(folder / "train"))
    alone, at_once = PictureMemory(scratch, batched=False), PictureMemory(scratch, batched=True)

    def opened(memory: PictureMemory) -> ResidentLoader:
        return memory.loader(corpus, transform, tokenizer, options.batch, SEED, device=device)

    decoding, one_by_one = timed(lambda: opened(alone), device)
    opening, _ = timed(lambda: opened(PictureMemory(scratch, batched=False)), device)
    stacking, together = timed(lambda: opened(at_once), device)
    loaders: dict[str, Loader] = {
        SHARDS: CaptionLoader(corpus, transform, tokenizer, options.batch, SEED),
        ONE_BY_ONE: one_by_one,
        AT_ONCE: together,
    }
    pixels = sum(file.stat().st_size for file in scratch.rglob("pixels"))
    return {
        "data": {"samples": corpus.samples, "image_size": options.image_size, "batch": options.batch},
        "bytes": pixels,
        "opening": {"first": decoding, "again": opening, "stacked": stacking},
        "batches": compare(loaders, device, options.seconds),
        "drawing": drawing(options.image_size, corpus.samples),
        "validation": validation(folder / "val", options.image_size, alone, device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--shards", type=Path, help="a folder with train and val; default: Flickr8k, or scenes"
    )
    parser.add_argument("--samples", type=int, default=1536, help="of scenes to draw")
    parser.add_argument("--image-size", type=int, default=80, help="pixels")
    parser.add_argument("--batch", type=int, default=128)
    add_common_options(parser, seconds=60.0)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    opened = data(options.shards, options.samples, options.image_size)
    with opened as (folder, name), tempfile.TemporaryDirectory() as scratch:
        result: dict[str, Any] = {"about": about("resident", options)}
        result |= measure(options, folder, Path(scratch))
    result["data"]["name"] = name
    file = options.output / ("resident_cuda.json" if options.device.startswith("cuda") else "resident.json")
    write_json(file, result)
    show(result)
    print(f"written to {file}", flush=True)


def show(result: dict[str, Any]) -> None:
    """Print what was measured."""
    for name, row in result["batches"].items():
        print(
            f"{name:22} {row['milliseconds']['median']:8.2f} ms a batch, {row['speed']['median']:.2f} times as fast; "
            f"{row['first_milliseconds']:.1f} ms for the first of an epoch"
        )
    draws, passes = result["drawing"], result["validation"]
    print(f"drawing a crop: {draws['alone']:.1f} µs by torch, {draws['together']:.1f} µs together")
    print(
        f"validation of {passes['pictures']}: {passes['without']['median']:.2f} s, {passes['first']:.2f} s the first "
        f"time, {passes['again']['median']:.3f} s again, {passes['speed']['median']:.1f} times as fast"
    )


if __name__ == "__main__":
    main()

"""Compare our loader with OpenCLIP's on the same shards, in samples per second and core; time ours on 1,000 shards.

    python -m benchmarks.loader [--seconds 180] [--workers 0 1 2] [--output benchmarks/results]

Each loader runs in a process of its own, with one thread per process, and the loaders take turns. The transforms are
the same: a random crop of half to all of the area, resized to 224 by 224 with a bicubic filter, and normalized (by us
per batch, by OpenCLIP in the transform). Samples per core are per second of processor time, summed over all processes.
With 1,000 shards of 100 samples, the program measures the seconds that our loader takes to open them, for the first
time and again, and then to the first batch in the middle of an epoch. Writes loader.json.
"""

from __future__ import annotations

import io
import itertools
import os
import statistics
import tarfile
import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context, set_start_method
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from benchmarks.about import about, parser_of, write_json
from benchmarks.tables import loader_table
from diffclip.benchmarking.timing import describe_error
from diffclip.config import OPENAI_MEAN, OPENAI_STD, PreprocessConfig, named_config
from diffclip.data.loader import CaptionLoader
from diffclip.data.pairs import Pairs
from diffclip.data.transforms import TrainTransform
from diffclip.preprocess import normalize
from diffclip.tokenizer import Tokenizer

MODEL, IMAGE_SIZE, SCALE, SEED = "ViT-B-16", 224, (0.5, 1.0), 0
PREPROCESS = PreprocessConfig(mean=OPENAI_MEAN, std=OPENAI_STD, interpolation="bicubic")
SAMPLES, SHARDS = 6144, 8
MANY, EACH, LARGE, WINDOW = 1000, 100, 256, 16
_SETTLE = 0.7  # seconds until the workers of a loader have no work left if nothing reads from it


# --- the two loaders ---


class Feed(NamedTuple):
    """An endless iterator of batches (images, tokens), and the number of batches per epoch."""

    batches: Iterator[tuple[torch.Tensor, torch.Tensor]]
    batches_per_epoch: int


def ours(shards: Path, batch: int, workers: int) -> Feed:
    """Make our feed. Images arrive as bytes and are normalized here into one buffer, as a device reuses its memory."""
    loader = _loader(Pairs(str(shards)), batch, workers)

    def forever() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        buffer = torch.empty(batch, 3, IMAGE_SIZE, IMAGE_SIZE)
        for epoch in itertools.count():
            for pairs in loader.epoch(epoch):
                yield normalize(pairs.images, PREPROCESS, buffer[: len(pairs)]), pairs.tokens

    return Feed(forever(), loader.batches_per_epoch)


def _loader(pairs: Pairs, batch: int, workers: int = 0) -> CaptionLoader:
    transform = TrainTransform(IMAGE_SIZE, PREPROCESS, SCALE)
    tokenizer = Tokenizer(named_config(f"CLIP-{MODEL}").text)
    tokenizer("a text")  # reads the vocabulary, as a training does before its first batch
    return CaptionLoader(pairs, transform, tokenizer, batch, SEED, workers)


def openclip(shards: Path, batch: int, workers: int) -> Feed:
    """Make OpenCLIP's feed, with the dataset, transform and tokenizer of its training program."""
    import open_clip
    from open_clip.transform import image_transform
    from open_clip_train.data import get_wds_dataset

    settings: dict[str, Any] = {"aug_cfg": {"scale": SCALE}, "interpolation": "bicubic"}
    transform = image_transform(IMAGE_SIZE, True, PREPROCESS.mean, PREPROCESS.std, **settings)
    tokenizer = open_clip.get_tokenizer(MODEL)
    options = Namespace(
        train_data=sorted(map(str, shards.glob("*.tar"))),
        train_num_samples=len(Pairs(str(shards))),
        train_data_upsampling_factors=None,
        dataset_resampled=False,
        seed=SEED,
        batch_size=batch,
        workers=workers,
        world_size=1,
    )
    data = get_wds_dataset(options, transform, is_train=True, floor=True, tokenizer=tokenizer)

    def forever() -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for epoch in itertools.count():
            data.set_epoch(epoch)
            yield from data.dataloader

    return Feed(forever(), data.dataloader.num_batches)


FEEDS: dict[str, Callable[[Path, int, int], Feed]] = {"ours": ours, "OpenCLIP": openclip}
OURS, THEIRS = FEEDS


# --- shards ---


def make_shards(folder: Path, samples: int, shards: int) -> float:
    """Write `shards` tars with `samples` samples in all, an image and a caption each; return an image's mean bytes.

    Images are about as large and as hard to decode as photographs scaled for training: a shorter edge of 256, 25 KB.
    At most 512 are different, because drawing takes longer than the whole measurement.
    """
    drawn = [_image(index) for index in range(min(512, samples))]
    numbers = itertools.count()
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
            for _ in range(samples // shards + (shard < samples % shards)):
                number = next(numbers)
                image, captions = drawn[number % len(drawn)]
                caption = captions[number // len(drawn) % len(captions)]
                for name, content in (("jpg", image), ("txt", caption.encode())):
                    member = tarfile.TarInfo(f"{number:08d}.{name}")
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    return statistics.mean(len(drawn[number % len(drawn)][0]) for number in range(samples))


def _image(index: int) -> tuple[bytes, tuple[str, ...]]:
    """Draw a scene in landscape or portrait format, with the grain of a photograph."""
    from diffclip.scenes.scene import draw_scene

    scene = draw_scene(index, seed=SEED, size=341)
    crop = scene.image[:256] if index % 2 else scene.image[:, :256]
    rng = np.random.default_rng((SEED, index))
    grain = rng.normal(0, 4, crop.shape[:2])[..., None] + rng.normal(0, 2, crop.shape)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(crop + grain, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue(), scene.captions


# --- what is measured, in the process of a loader ---

_feed: Feed


def start(name: str, shards: Path, batch: int, workers: int) -> int:
    """Start a loader in this process and take its first batch; return the number of batches per epoch."""
    global _feed
    torch.set_num_threads(1)
    # the default of a training program, but not of a spawned process; OpenCLIP's dataset cannot be pickled
    set_start_method("fork", force=True)
    _feed = FEEDS[name](shards, batch, workers)
    next(_feed.batches)
    return _feed.batches_per_epoch


def turn(seconds: float, skipped: int) -> dict[str, float]:
    """Measure samples, seconds and processor seconds, after `skipped` batches that were ready before."""
    for _ in range(skipped):
        next(_feed.batches)
    samples, used, started = 0, processor_seconds(os.getpid()), time.perf_counter()
    while (took := time.perf_counter() - started) < seconds or not samples:
        samples += len(next(_feed.batches)[0])
    used = processor_seconds(os.getpid()) - used
    time.sleep(_SETTLE)
    return {"samples": samples, "seconds": took, "processor_seconds": used}


def tree(root: int) -> list[int]:
    """List `root` and all its descendant processes, from Linux's /proc."""
    pids = [root]
    for pid in pids:
        with suppress(FileNotFoundError, ProcessLookupError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                pids += map(int, (task / "children").read_text().split())
    return pids


def processor_seconds(root: int) -> float:
    """Return the processor time of a process, its running descendants and the children that it has waited for."""
    ticks = 0
    for pid in tree(root):
        with suppress(FileNotFoundError, ProcessLookupError):
            # the process name, in brackets, may contain anything
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11 : 15 if pid == root else 13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def enter(shards: Path, batch: int, window: int | None) -> dict[str, float]:
    """Measure the seconds to open shards, and then to the first batch in the middle of an epoch."""
    torch.set_num_threads(1)
    started = time.perf_counter()
    loader = _loader(Pairs(str(shards), window=window), batch)
    opened = time.perf_counter()
    next(loader.epoch(0, loader.batches_per_epoch // 2))
    return {"open": opened - started, "first_batch": time.perf_counter() - opened}


# --- the comparison ---


KINDS = {"per_second": "seconds", "per_core": "processor_seconds"}


def compare(shards: Path, batch: int, workers: int, seconds: float, length: float) -> dict[str, Any]:
    """Measure both loaders for `seconds`, in turns of `length` seconds."""
    turns: dict[str, list[dict[str, float]]] = {}
    result: dict[str, Any] = {}
    with ExitStack() as stack:
        pools = {name: stack.enter_context(loader_process()) for name in FEEDS}
        for name, pool in pools.items():
            try:
                pool.submit(start, name, shards, batch, workers).result()
                turns[name] = []
            except Exception as error:  # if a loader fails, still measure the other
                result[name] = {"why": describe_error(error)}
        started, done = time.perf_counter(), 0
        while turns and (done < 2 or time.perf_counter() - started < seconds):
            for name in list(turns) if done % 2 else reversed(turns):
                turns[name].append(pools[name].submit(turn, length, 2 * workers + 2).result())
            done += 1
        for name, timings in turns.items():
            result[name] = {kind: spread([rate(timing, kind) for timing in timings]) for kind in KINDS}
    if len(turns) == 2:
        rounds = list(zip(turns[OURS], turns[THEIRS], strict=True))
        result["ratio"] = {kind: spread([rate(a, kind) / rate(b, kind) for a, b in rounds]) for kind in KINDS}
    return result


def many_shards(folder: Path, count: int) -> dict[str, Any]:
    """Measure `enter` with all shards shuffled together, for the first time and again, and with windows."""
    make_shards(folder, EACH * SHARDS, SHARDS)
    for number in range(SHARDS, count):  # links to the same samples, opened and indexed like other shards
        os.link(folder / f"{number % SHARDS:05d}.tar", folder / f"{number:05d}.tar")
    times = {}
    for name, window in (("first time", None), ("again", None), (f"again, in windows of {WINDOW}", WINDOW)):
        with loader_process() as pool:  # a new process, without the state of the one before
            times[name] = pool.submit(enter, folder, LARGE, window).result()
    return {"shards": count, "samples": EACH, "batch": LARGE, "times": times}


@contextmanager
def loader_process() -> Iterator[ProcessPoolExecutor]:
    """Start a process for a loader; at the end, stop it and its workers at once."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        yield pool
        with suppress(BrokenProcessPool):  # the process may have died already
            pool.submit(os._exit, 0)


def rate(one: dict[str, float], kind: str) -> float:
    """Return the samples per second, or per processor second, of one turn."""
    return one["samples"] / one[KINDS[kind]]


def spread(values: list[float]) -> dict[str, float]:
    """Return the median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "turns": len(values)}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--samples", type=int, default=SAMPLES, help="to make up")
    parser.add_argument("--many", type=int, default=MANY, help="shards to open")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="processes that read ahead")
    parser.add_argument("--seconds", type=float, default=180.0, help="to spend on measuring, about")
    parser.add_argument("--turn", type=float, default=3.0, help="seconds of a loader's turn")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder")
    options = parser.parse_args()
    options.device, options.threads = "cpu", 1
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # for the processes that are started later
        os.environ[variable] = "1"
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["XDG_CACHE_HOME"] = f"{scratch}/cache"  # so that the indexes are deleted with the shards
        folder, many, shards = Path(scratch, "shards"), Path(scratch, "many"), min(SHARDS, options.samples)
        folder.mkdir()
        many.mkdir()
        size = make_shards(folder, options.samples, shards)
        data = {"shards": shards, "samples": options.samples, "image_bytes": size}
        settings = {"model": MODEL, "image_size": IMAGE_SIZE, "scale": SCALE, "batch": options.batch}
        result: dict[str, Any] = {"about": about("loader", options) | settings, "data": data, "workers": {}}
        for workers in options.workers:
            seconds = options.seconds / len(options.workers)
            compared = compare(folder, options.batch, workers, seconds, options.turn)
            result["workers"][str(workers)] = compared
            # after each, so that a stopped run keeps its results
            write_json(options.output / "loader.json", result)
            print("\n".join(loader_table(result)), flush=True)
        result["many"] = many_shards(many, options.many)
        write_json(options.output / "loader.json", result)
        print("\n".join(loader_table(result)), flush=True)
    print(f"written to {options.output / 'loader.json'}", flush=True)


if __name__ == "__main__":
    main()

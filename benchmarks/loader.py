"""Our loader and OpenCLIP's own on the same shards: samples a second and core, and memory over an epoch.

    python -m benchmarks.loader [--shards FOLDER] [--seconds 180] [--workers 0 1 2] [--output benchmarks/results]

Each loader lives in a process of its own, with one thread to a process, and they take turns. The transforms are the
same: a random crop of half to all of the area, resized to 224 by 224 with a bicubic filter and normalised, ours after
a batch has come, OpenCLIP's in the transform. A core's samples are those of a second of processor time, of all
processes together. Writes loader.json.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import get_context, set_start_method
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from benchmarks.about import about, write_json
from benchmarks.feeds import FEEDS, IMAGE_SIZE, MODEL, SCALE, Feed
from benchmarks.made_shards import make_shards
from benchmarks.processes import memory, processor_seconds
from diffclip.benchmarking.timing import reason

OURS, THEIRS = FEEDS
SAMPLES, SHARDS = 6144, 8
_SETTLE = 0.7  # seconds until the workers of a loader that nobody reads from have nothing left to do


class Reader:
    """A loader in a process of its own, which reads from it when told to."""

    def __init__(self, name: str, shards: Path, batch: int, workers: int) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, name, shards, batch, workers))
        self._process.start()
        theirs.close()

    def ask(self, question: str, *arguments: Any) -> dict[str, Any]:
        """The answer, or {"why": …} where there is none."""
        try:
            self._pipe.send((question, arguments))
            answer: dict[str, Any] = self._pipe.recv()
        except (EOFError, OSError):
            return {"why": "its process died"}
        return answer

    def close(self) -> None:
        self._pipe.close()
        self._process.join()


def _serve(pipe: Connection, name: str, shards: Path, batch: int, workers: int) -> None:
    torch.set_num_threads(1)
    # as in a training program that nobody has started this way; OpenCLIP's data set cannot be pickled
    set_start_method("fork", force=True)
    feed: Feed | None = None
    while True:
        try:
            question, arguments = pipe.recv()
        except EOFError:
            break
        try:
            if feed is None:
                feed = FEEDS[name](shards, batch, workers)
            pipe.send(_QUESTIONS[question](feed, *arguments))
        except Exception as error:  # a loader that fails must not take the other along
            pipe.send({"why": reason(error)})
    # workers that are left alone end with this process, whose batches nobody closes in order
    os._exit(0)


def turn(feed: Feed, seconds: float, skipped: int) -> dict[str, Any]:
    """Samples, seconds and processor seconds, after `skipped` batches that were waiting."""
    for _ in range(skipped):
        next(feed.batches)
    samples, used, started = 0, processor_seconds(os.getpid()), time.perf_counter()
    while (took := time.perf_counter() - started) < seconds or not samples:
        samples += len(next(feed.batches)[0])
    used = processor_seconds(os.getpid()) - used
    time.sleep(_SETTLE)
    return {"samples": samples, "seconds": took, "processor_seconds": used}


def over_an_epoch(feed: Feed, readings: int) -> dict[str, Any]:
    """Memory of all processes, so many times from the first to the last batch of an epoch's worth.

    One that came before has filled caches, and what the system hands out page by page.
    """
    for _ in range(feed.batches_per_epoch):
        next(feed.batches)
    places = {round(i * (feed.batches_per_epoch - 1) / (readings - 1)) for i in range(readings)}
    found = []
    for place in range(feed.batches_per_epoch):
        next(feed.batches)
        if place in places:
            found.append(memory(os.getpid()))
    return {name: [reading[name] for reading in found] for name in found[0]}


def parts(feed: Feed, batches: int) -> dict[str, Any]:
    """Microseconds of processor time a sample by part, and of all, for a loader without workers."""
    next(feed.batches)
    before = {name: clock.seconds for name, clock in feed.clocks.items()}
    samples, started = 0, time.process_time()
    for _ in range(batches):
        samples += len(next(feed.batches)[0])
    total = time.process_time() - started
    spent = {name: clock.seconds - before[name] for name, clock in feed.clocks.items()}
    return {name: 1e6 * seconds / samples for name, seconds in (spent | {"all": total}).items()}


_QUESTIONS = {"turn": turn, "memory": over_an_epoch, "parts": parts}


def compare(
    shards: Path, batch: int, workers: int, seconds: float, length: float, readings: int
) -> dict[str, Any]:
    """Both loaders by turns for so many seconds, then their memory over an epoch where `readings` are wanted."""
    readers = {name: Reader(name, shards, batch, workers) for name in FEEDS}
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in FEEDS}
    result: dict[str, Any] = {name: readers[name].ask("turn", 0.0, 1) for name in FEEDS}  # starts them
    names = [name for name in FEEDS if "why" not in result[name]]
    started, done = time.perf_counter(), 0
    while names and (done < 2 or time.perf_counter() - started < seconds):
        for name in names if done % 2 else names[::-1]:
            answer = readers[name].ask("turn", length, 2 * workers + 2)
            if "why" in answer:
                result[name] = answer
                names.remove(name)
                break
            turns[name].append(answer)
        done += 1
    for name in names:
        result[name] = rates(turns[name])
        if readings:
            result[name]["memory"] = readers[name].ask("memory", readings)
    if len(names) == 2:
        result["ratio"] = ratios(turns[OURS], turns[THEIRS])
    for reader in readers.values():
        reader.close()
    return result


def rates(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """Samples a second and a processor second, each turn's."""
    return {
        "per_second": spread([turn["samples"] / turn["seconds"] for turn in turns]),
        "per_core": spread([turn["samples"] / turn["processor_seconds"] for turn in turns]),
    }


def ratios(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """Ours to theirs, round by round."""
    return {
        kind: spread(
            [a["samples"] / a[by] / (b["samples"] / b[by]) for a, b in zip(ours, theirs, strict=False)]
        )
        for kind, by in (("per_second", "seconds"), ("per_core", "processor_seconds"))
    }


def spread(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high, "turns": len(values)}


def breakdown(shards: Path, batch: int) -> dict[str, dict[str, Any]]:
    """Where each loader's time goes, in one process: microseconds a sample by part."""
    result = {}
    for name in FEEDS:
        reader = Reader(name, shards, batch, 0)
        found = reader.ask("parts", max(1, 1024 // batch))
        reader.close()
        if "why" not in found:
            decoded = {"decode": _decoding(name, shards)}
            known = decoded | {part: value for part, value in found.items() if part != "all"}
            found = known | {"read, order, collate": found["all"] - sum(known.values()), "all": found["all"]}
        result[name] = found
    return result


def _decoding(name: str, shards: Path) -> float:
    """Microseconds of processor time to decode a picture of the first shard as a loader does."""
    from webdataset.autodecode import imagehandler

    from diffclip.data.images import read_pixels

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    decoder = read_pixels if name == OURS else lambda data: imagehandler("pilrgb")("x.jpg", data)
    with tarfile.open(next(iter(sorted(shards.glob("*.tar"))))) as tar:
        files = [tar.extractfile(member) for member in itertools.islice(tar, 1024) if "jp" in member.name]
        pictures = [file.read() for file in files if file]
    decoder(pictures[0])
    started = time.process_time()
    for picture in pictures:
        decoder(picture)
    used = time.process_time() - started
    torch.set_num_threads(threads)
    return 1e6 * used / len(pictures)


@contextmanager
def shards_to_read(given: Path | None, samples: int) -> Iterator[tuple[Path, dict[str, Any]]]:
    """The folder of the shards, made up unless it is given, and what is in it."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = given or Path(scratch)
        if given is None:
            make_shards(folder, samples, min(SHARDS, samples))
        tars = sorted(folder.glob("*.tar"))
        if not tars:
            raise SystemExit(f"no .tar in {folder}: give a folder of shards, or none")
        count, size = 0, 0
        for path in tars:
            with tarfile.open(path) as tar:
                sizes = [member.size for member in tar if member.name.endswith((".jpg", ".jpeg"))]
            count, size = count + len(sizes), size + sum(sizes)
        yield folder, {
            "shards": len(tars), "samples": count, "picture_bytes": size / max(1, count), "made_up": given is None,
        }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--shards", type=Path, help="a folder of .tar with .jpg and .txt; default: made up")
    parser.add_argument("--samples", type=int, default=SAMPLES, help="to make up")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="processes that read ahead")
    parser.add_argument("--seconds", type=float, default=180.0, help="to spend on measuring, about")
    parser.add_argument("--turn", type=float, default=3.0, help="seconds of a loader's turn")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder")
    options = parser.parse_args()
    options.device, options.threads = "cpu", 1
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # of the processes to come
        os.environ[variable] = "1"
    with shards_to_read(options.shards, options.samples) as (folder, data):
        named = {"model": MODEL, "image_size": IMAGE_SIZE, "scale": SCALE, "batch": options.batch}
        result: dict[str, Any] = {"about": about("loader", options) | named, "data": data, "workers": {}}
        result["breakdown"] = breakdown(folder, options.batch)
        show_breakdown(result["breakdown"])
        file = options.output / "loader.json"
        for workers in options.workers:
            readings = 9 if workers == options.workers[-1] else 0
            seconds = options.seconds / len(options.workers)
            found = compare(folder, options.batch, workers, seconds, options.turn, readings)
            result["workers"][str(workers)] = found
            write_json(file, result)  # after each: a run that is stopped leaves what it has
            show(workers, found)
    print(f"written to {file}", flush=True)


def show_breakdown(found: dict[str, dict[str, Any]]) -> None:
    """Print the parts of both loaders."""
    for name, row in found.items():
        cells = [row["why"]] if "why" in row else [f"{part} {value:.0f}" for part, value in row.items()]
        print(f"{name:10} µs a sample: {', '.join(cells)}", flush=True)


def show(workers: int, found: dict[str, Any]) -> None:
    """Print what was measured with so many workers."""
    print(f"\n{workers} workers")
    for name in FEEDS:
        row = found[name]
        if "why" in row:
            print(f"{name:10} {row['why']}")
            continue
        second, core = row["per_second"]["median"], row["per_core"]["median"]
        print(f"{name:10}{second:9.0f} samples/s{core:9.0f} samples/s and core")
        for kind, sizes in row.get("memory", {}).items():
            shown = sizes if kind == "why" else " ".join(f"{size / 2**20:.0f}" for size in sizes)
            print(f"{'':10} memory over an epoch, {kind}, MiB: {shown}")
    for kind, ratio in found.get("ratio", {}).items():
        print(f"ratio, {kind}: {ratio['median']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})")
    print("", flush=True)


if __name__ == "__main__":
    main()

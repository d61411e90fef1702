"""An index of made vectors: how long it takes to build, to bring up to date, to load and to search, and what memory.

    python -m benchmarks.search [--vectors 100000] [--width 512] [--output benchmarks/results]

The vectors are unit vectors in crowds, as a model gives them; no picture is read and no model runs. Everything else is
what `diffclip search` does: every file is looked up, vectors are kept in the database a batch at a time, and searched
by FAISS. The update changes 1 % of the files, adds 0.1 % and removes 0.1 %; it is then loaded from the file of vectors
and what the database has beyond it. Each step is done by a process of its own. Its memory is the highest of its life,
less that of one that has only loaded the libraries. Writes search.json.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.about import about, write_json
from diffclip.search.compact import FILE, CompactVectors
from diffclip.search.index import update_store
from diffclip.search.scan import Entry
from diffclip.search.store import COMPACT, DATABASE, Outcome, Pending, Store

_CROWDS, _POOL = 1009, 4093  # primes, so that few vectors are the same
_SPREAD = 0.5
_BATCH = 1024
_QUERIES, _TOP = 50, 10
_FOLDER = Path("/made up")


@cache
def drawn(count: int, width: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).standard_normal((count, width), dtype=np.float32)


@dataclass(frozen=True)
class Made:
    """The files of a folder, at first or after the update, and the vectors of width D."""

    place: Path
    count: int
    width: int
    updated: bool

    def entries(self) -> Iterator[Entry]:
        shift = self.count // 1000 if self.updated else 0
        for number in range(shift, self.count + shift):
            changed = self.updated and number % 100 == 7
            name = f"{number // 5000:05d}/holiday picture {number:08d}.jpg"
            yield Entry(name.encode(), 100_000 + changed, 1_700_000_000_000_000_000 + number)

    def near(self, numbers: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.float32]:
        """Unit vectors [n, D] of the crowds `numbers`, [n], with the noise of those numbers."""
        crowds, pool = drawn(_CROWDS, self.width), drawn(_POOL, self.width)
        found = crowds[numbers % _CROWDS] + np.float32(_SPREAD) * pool[noise % _POOL]
        return found / np.linalg.norm(found, axis=1, keepdims=True)

    def vectors(self, files: Iterable[Entry]) -> NDArray[np.float32]:
        """The vectors [n, D] of files in their present state."""
        known = [(int(file.path[-12:-4]), file.size) for file in files]
        numbers, states = np.array(known, dtype=np.int64).T
        return self.near(numbers, numbers // _CROWDS + 31 * states)

    def queries(self) -> NDArray[np.float32]:
        """Unit vectors [_QUERIES, D] in crowds."""
        numbers = np.arange(_QUERIES, dtype=np.int64)
        return self.near(17 * numbers, 29 * numbers + 5)

    def store(self) -> Store:
        return Store(self.place, _FOLDER, "made up", "made up", self.width)


def nothing(made: Made) -> dict[str, float]:
    """What the libraries take."""
    made.queries()
    return {}


def bring(made: Made) -> dict[str, float]:
    """Bring the database to what the folder holds; the making of the vectors is not counted."""
    store, making = made.store(), 0.0

    def embed(batches: Iterable[list[Pending]]) -> Iterator[list[Outcome]]:
        nonlocal making
        for batch in batches:
            started = time.perf_counter()
            vectors = made.vectors(batch).astype(np.float16)
            making += time.perf_counter() - started
            yield [Outcome(file, vector) for file, vector in zip(batch, vectors, strict=True)]

    started = time.perf_counter()
    done = update_store(store, _FOLDER, made.entries(), [], embed, _BATCH)
    took = time.perf_counter() - started - making
    store.close()
    return {"seconds": took, "added": done.added, "changed": done.changed, "removed": done.removed}


def load(made: Made) -> dict[str, float]:
    """Have the vectors ready to be searched."""
    store, shelf = made.store(), CompactVectors(made.width)
    started = time.perf_counter()
    shelf.refresh(store)
    return {"seconds": time.perf_counter() - started, "vectors": len(shelf)}


def search(made: Made) -> dict[str, Any]:
    """Milliseconds of a query with the paths of its answers, and these."""
    store, shelf = made.store(), CompactVectors(made.width)
    shelf.refresh(store)
    times, answers = [], []
    for query in made.queries():
        started = time.perf_counter()
        paths = store.paths([number for number, _ in shelf.search(query, _TOP)])
        times.append(1000 * (time.perf_counter() - started))
        answers.append(set(paths.values()))
    return {"median_ms": statistics.median(times), "slowest_ms": max(times), "answers": answers}


def exact(made: Made) -> dict[str, Any]:
    """The paths of the best for each query, by all vectors in float32."""
    queries, files = made.queries(), made.entries()
    best: list[list[tuple[float, bytes]]] = [[] for _ in queries]
    while chunk := list(islice(files, 20_000)):
        for kept, row in zip(best, queries @ made.vectors(chunk).T, strict=True):
            kept += [(float(row[i]), chunk[i].path) for i in np.argsort(row)[-_TOP:]]
            kept[:] = sorted(kept)[-_TOP:]
    return {"answers": [{path for _, path in kept} for kept in best]}


def alone(step: Callable[[Made], dict[str, Any]], made: Made) -> dict[str, Any]:
    """What a step gives in a process of its own, and the highest memory of that in bytes."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(measured, step, made).result()


def measured(step: Callable[[Made], dict[str, Any]], made: Made) -> dict[str, Any]:
    return step(made) | {"memory": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def measure(place: Path, count: int, width: int) -> dict[str, Any]:
    """All steps by name, and the sizes of the files."""
    before, after = (Made(place, count, width, updated) for updated in (False, True))
    libraries = alone(nothing, before)["memory"]
    steps = {
        "build": alone(bring, before),
        "load from the database": alone(load, before),
        "load from the file": alone(load, before),
        "nothing changed": alone(bring, before),
        "1.2 % changed": alone(bring, after),
        "load after that": alone(load, after),
        "search": alone(search, after),
    }
    answers, wanted = steps["search"].pop("answers"), alone(exact, after)["answers"]
    steps["search"]["overlap"] = statistics.fmean(
        len(mine & best) / _TOP for mine, best in zip(answers, wanted, strict=True)
    )
    for row in steps.values():
        row["memory"] -= libraries
    sizes = {name: (place / name).stat().st_size for name in (DATABASE, f"{COMPACT}/{FILE}")}
    return {"steps": steps, "libraries": libraries, "bytes": sizes}


def show(found: dict[str, Any]) -> None:
    """Print what was measured."""
    for name, row in found["steps"].items():
        numbers = {key: value for key, value in row.items() if key != "memory"}
        told = ", ".join(f"{key} {value:,.3f}".rstrip("0").rstrip(".") for key, value in numbers.items())
        print(f"{name:24}{row['memory'] / 2**20:8,.0f} MiB   {told}")
    print(f"{'the libraries':24}{found['libraries'] / 2**20:8,.0f} MiB")
    for name, size in found["bytes"].items():
        print(f"{name:24}{size / 2**20:8,.0f} MiB on disk")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder")
    options = parser.parse_args()
    options.device, options.threads = "cpu", 1
    with tempfile.TemporaryDirectory() as scratch:
        found = measure(Path(scratch) / "index", options.vectors, options.width)
    size = {"vectors": options.vectors, "width": options.width}
    file = options.output / "search.json"
    write_json(file, {"about": about("search", options) | size, **found})
    show(found)
    print(f"written to {file}", flush=True)


if __name__ == "__main__":
    main()

"""The order of an epoch: the numbers of the samples in each batch.

An item is one visit to a sample in an epoch: the number sample + repeat × total. `total` is the number of samples, and
`repeat` is the number of earlier visits to the sample. Everything is drawn from (seed, epoch). So each process knows
what the others read, and an epoch can start at any batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.int64]

INCREMENT, BITS_64 = 0x9E3779B97F4A7C15, 2**64 - 1  # of SplitMix64
# Keys added to (seed, epoch) for further draws; (seed, epoch) alone draws the order.
_PART_OF_SOURCE, _SHARES, _SHARD, _WINDOW = 1, 2, 3, 4


@dataclass(frozen=True)
class Layout:
    """The number of usable samples of each shard, by source, and the weight of each source."""

    sources: Sequence[Sequence[int]]
    weights: Sequence[float]

    @property
    def total(self) -> int:
        """The number of samples, each counted once."""
        return sum(map(sum, self.sources))

    @property
    def visits(self) -> list[int]:
        """For each source, the number of samples that an epoch shows, with each visit counted."""
        pairs = zip(self.sources, self.weights, strict=True)
        return [round(weight * sum(counts)) for counts, weight in pairs]

    @property
    def per_epoch(self) -> int:
        """The number of samples that an epoch shows, with each visit counted."""
        return sum(self.visits)

    @property
    def passes(self) -> list[tuple[int, int]]:
        """For each source, how often an epoch shows all its samples, and how many samples it shows once more."""
        pairs = zip(self.sources, self.visits, strict=True)
        return [divmod(visits, max(sum(counts), 1)) for counts, visits in pairs]


@dataclass(frozen=True)
class Steps:
    """The part of each batch that this process reads. All processes make the same number of steps."""

    batches: int
    size: int
    rank: int
    world: int

    @property
    def part(self) -> int:
        """The number of samples of a batch that one process reads."""
        return self.size // self.world


def whole_epoch(layout: Layout, steps: Steps, seed: int, epoch: int, start: int = 0) -> Iterator[Items]:
    """Yield this process's part of each batch from `start` on. The order is one permutation of all items.

    A batch has the same samples for any number of processes.
    """
    order = _visits(layout, seed, epoch)
    np.random.default_rng((seed, epoch)).shuffle(order)
    order = order[: steps.batches * steps.size].reshape(steps.batches, steps.world, steps.part)
    # Copy and delete: otherwise the parts of the other processes would stay in memory for an epoch.
    part = order[start:, steps.rank].copy()
    del order
    yield from part


def _visits(layout: Layout, seed: int, epoch: int) -> Items:
    """List all items of an epoch, source by source."""
    first, parts = 0, [np.zeros(0, np.int64)]
    for source, (repeats, extra) in enumerate(layout.passes):
        samples = np.arange(first, first + sum(layout.sources[source]))
        parts += [samples + repeat * layout.total for repeat in range(repeats)]
        if extra:
            draw = np.random.default_rng((seed, epoch, _PART_OF_SOURCE, source))
            parts.append(draw.permutation(samples)[:extra] + repeats * layout.total)
        first += len(samples)
    return np.concatenate(parts)


def windowed_epoch(
    layout: Layout,
    steps: Steps,
    window: int,
    seed: int,
    epoch: int,
    start: int = 0,
    upcoming: Callable[[list[int]], None] = lambda shards: None,
) -> Iterator[Items]:
    """Yield this process's part of each batch from `start` on. The shards are put into random order, which is cut into
    one equal part per process. Each process shuffles `window` shards at a time.

    Memory grows with the number of shards and the samples of a window, not with all samples. `upcoming` is called
    before each window, with the shards of this window and of the next one.
    """
    pieces = _shuffled_shards(layout, seed, epoch)
    ends = np.cumsum(pieces[:, 2])
    begins = ends - pieces[:, 2]
    counts = np.concatenate([np.array(source, dtype=np.int64) for source in layout.sources])
    firsts = np.cumsum(counts) - counts
    # this process's part of the whole order, and the pieces that it touches
    first = steps.rank * steps.batches * steps.part
    last = first + steps.batches * steps.part
    touched = np.flatnonzero((ends > first) & (begins < last))
    position, pending = first + start * steps.part, np.zeros(0, np.int64)
    for offset in range(0, len(touched), window):
        chosen = touched[offset : offset + window].tolist()
        begin, end = max(begins[chosen[0]], first), min(ends[chosen[-1]], last)
        if end <= position:
            continue
        upcoming(list(dict.fromkeys(pieces[touched[offset : offset + 2 * window], 0].tolist())))
        parts = []
        for piece in chosen:
            shard, repeat, taken = pieces[piece].tolist()
            order = np.random.default_rng((seed, epoch, _SHARD, shard, repeat)).permutation(counts[shard])
            inside = slice(max(first - begins[piece], 0), min(last - begins[piece], taken))
            parts.append(order[inside] + firsts[shard] + repeat * layout.total)
        items = np.concatenate(parts)
        np.random.default_rng((seed, epoch, _WINDOW, chosen[0])).shuffle(items)
        pending = np.concatenate([pending, items[max(position - begin, 0) :]])
        whole = len(pending) // steps.part * steps.part
        yield from pending[:whole].reshape(-1, steps.part)
        pending = pending[whole:]


def _shuffled_shards(layout: Layout, seed: int, epoch: int) -> Items:
    """Return [pieces, 3]: shard, repeat and number of samples. A shard has one piece for each time it is shown."""
    pieces, first = [np.zeros((0, 3), np.int64)], 0
    for source, (repeats, extra) in enumerate(layout.passes):
        counts = np.array(layout.sources[source], dtype=np.int64)
        shards = np.arange(first, first + len(counts))
        passes = [counts] * repeats
        if extra:
            # each shard gives its share, rounded up or down at random
            total = int(counts.sum())
            shift = int(np.random.default_rng((seed, epoch, _SHARES, source)).integers(total))
            # in Python's integers: the product of two numbers of samples may overflow int64
            ends = [(extra * end + shift) // total for end in np.cumsum(counts).tolist()]
            passes.append(np.diff(np.array([0, *ends], dtype=np.int64)))
        for repeat, taken in enumerate(passes):
            pieces.append(np.stack([shards, np.full_like(shards, repeat), taken], axis=1)[taken > 0])
        first += len(counts)
    return np.random.default_rng((seed, epoch)).permutation(np.concatenate(pieces))


def seeds_of(seed: int, epoch: int, items: Items) -> NDArray[np.uint64]:
    """Return a seed in [0, 2^64) for each item, from which the crop and the choice of a caption are drawn."""
    mixed = np.zeros(len(items), np.uint64)
    for numbers in (seed, epoch, items.astype(np.uint64)):
        mixed = mix(mixed ^ numbers)
    return mixed


def mix(numbers: Any) -> Any:
    """Mix one int below 2^64, or an array of uint64, by a step of SplitMix64 (Steele, Lea and Flood, 2014)."""
    numbers = (numbers + INCREMENT) & BITS_64
    numbers = ((numbers ^ (numbers >> 30)) * 0xBF58476D1CE4E5B9) & BITS_64
    numbers = ((numbers ^ (numbers >> 27)) * 0x94D049BB133111EB) & BITS_64
    return numbers ^ (numbers >> 31)

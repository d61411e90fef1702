"""The order of an epoch: which samples make each batch, in numbers alone.

An item is a sample's visit in an epoch: sample + repeat × total, where `total` is the number of samples and repeat
counts the visits to that sample before it. Everything is drawn from (seed, epoch), so that any process can tell what
any other reads, and an epoch can be entered at any batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Items = NDArray[np.int64]

# Keys of draws beside (seed, epoch), which draws the order itself.
_PART_OF_SOURCE, _SHARES, _SHARD, _WINDOW = 1, 2, 3, 4


@dataclass(frozen=True)
class Layout:
    """How many usable samples each shard of each source has, and how often an epoch shows those of a source."""

    sources: Sequence[Sequence[int]]
    weights: Sequence[float]

    @property
    def total(self) -> int:
        """All samples."""
        return sum(map(sum, self.sources))

    @property
    def per_epoch(self) -> int:
        """The samples that an epoch shows, each visit counted."""
        passes = zip(self.sources, self.passes, strict=True)
        return sum(whole * sum(counts) + more for counts, (whole, more) in passes)

    @property
    def passes(self) -> list[tuple[int, int]]:
        """For each source how often an epoch shows all of it, and how many samples it shows once more."""
        return [
            divmod(round(weight * sum(counts)), max(sum(counts), 1))
            for counts, weight in zip(self.sources, self.weights, strict=True)
        ]


@dataclass(frozen=True)
class Steps:
    """Which part of each batch this process reads. All processes make the same number of steps."""

    batches: int
    size: int
    rank: int
    world: int

    @property
    def part(self) -> int:
        """The samples of a batch that one process reads."""
        return self.size // self.world


class WholeEpoch:
    """One process's part of one permutation of all samples.

    A batch is the same samples whatever the number of processes.
    """

    def __init__(self, layout: Layout, steps: Steps, seed: int, epoch: int) -> None:
        self._layout, self._steps, self._seed, self._epoch = layout, steps, seed, epoch

    def batches(self, start: int) -> Iterator[Items]:
        """The items of each batch from `start` on."""
        steps = self._steps
        order = self._items()
        np.random.default_rng((self._seed, self._epoch)).shuffle(order)
        order = order[: steps.batches * steps.size].reshape(steps.batches, steps.world, steps.part)
        # A copy, and the name freed: the other processes' parts would else stay in memory for an epoch.
        mine = order[start:, steps.rank].copy()
        del order
        yield from mine

    def window(self, batch: int) -> int:
        """As `WindowedEpoch.window`: all samples are one window."""
        return 0

    def shards(self, window: int) -> list[int]:
        """As `WindowedEpoch.shards`: none, since all shards are at hand."""
        return []

    def _items(self) -> Items:
        layout, first, parts = self._layout, 0, [np.zeros(0, np.int64)]
        for source, (whole, more) in enumerate(layout.passes):
            samples = np.arange(first, first + sum(layout.sources[source]))
            parts += [samples + repeat * layout.total for repeat in range(whole)]
            if more:
                draw = np.random.default_rng((self._seed, self._epoch, _PART_OF_SOURCE, source))
                parts.append(draw.permutation(samples)[:more] + whole * layout.total)
            first += len(samples)
        return np.concatenate(parts)


class WindowedEpoch:
    """Shards in random order, cut into equal parts for the processes; each shuffles some shards at a time.

    Memory grows with the number of shards and the samples of a window, not with all samples.

    Args:
        window: shards that are shuffled together.
    """

    def __init__(self, layout: Layout, steps: Steps, window: int, seed: int, epoch: int) -> None:
        self._total, self._steps, self._seed, self._epoch = layout.total, steps, seed, epoch
        self._counts = np.array([count for counts in layout.sources for count in counts], dtype=np.int64)
        self._firsts = np.cumsum(self._counts) - self._counts
        self._pieces = self._shuffled(layout)
        ends = np.cumsum(self._pieces[:, 2])
        self._begins = ends - self._pieces[:, 2]
        self._start = steps.rank * steps.batches * steps.part
        self._end = self._start + steps.batches * steps.part
        mine = np.flatnonzero((ends > self._start) & (self._begins < self._end))
        cuts = [*mine[::window].tolist(), int(mine[-1]) + 1]
        self._windows = list(pairwise(cuts))
        self._window_ends = np.array([self._span(window)[1] for window in self._windows])

    def batches(self, start: int) -> Iterator[Items]:
        """The items of each batch from `start` on."""
        part = self._steps.part
        at, left = self._start + start * part, np.zeros(0, np.int64)
        for window in self._windows[self.window(start) :]:
            begin, _ = self._span(window)
            left = np.concatenate([left, self._items(window)[max(at - begin, 0) :]])
            whole = len(left) // part * part
            yield from left[:whole].reshape(-1, part)
            left = left[whole:]

    def window(self, batch: int) -> int:
        """The number of the window that `batch` starts in; one after the last for the end of the epoch."""
        at = self._start + batch * self._steps.part
        return int(self._window_ends.searchsorted(at, side="right"))

    def shards(self, window: int) -> list[int]:
        """The shards of a window; none after the last."""
        if window >= len(self._windows):
            return []
        return list(dict.fromkeys(self._pieces[slice(*self._windows[window]), 0].tolist()))

    def _shuffled(self, layout: Layout) -> Items:
        """[pieces, 3]: shard, repeat and number of samples; a shard is a piece for each time it is shown."""
        pieces, first = [np.zeros((0, 3), np.int64)], 0
        for source, (whole, more) in enumerate(layout.passes):
            counts = np.array(layout.sources[source], dtype=np.int64)
            shards = np.arange(first, first + len(counts))
            shown = [counts] * whole
            if more:
                shown.append(self._shares(counts, more, source))
            for repeat, taken in enumerate(shown):
                pieces.append(np.stack([shards, np.full_like(shards, repeat), taken], axis=1)[taken > 0])
            first += len(counts)
        order = np.concatenate(pieces)
        places = np.random.default_rng((self._seed, self._epoch)).permutation(len(order))
        shuffled: Items = order[places]
        return shuffled

    def _shares(self, counts: Items, more: int, source: int) -> Items:
        """How many of `more` samples each shard gives: its share, rounded up or down at random."""
        total = int(counts.sum())
        shift = int(np.random.default_rng((self._seed, self._epoch, _SHARES, source)).integers(total))
        # In Python's integers, which the product of two numbers of samples does not overflow.
        ends = [(more * end + shift) // total for end in np.cumsum(counts).tolist()]
        return np.diff(np.array([0, *ends], dtype=np.int64))

    def _span(self, window: tuple[int, int]) -> tuple[int, int]:
        """Begin and end, in the whole order, of this process's part of a window."""
        first, last = window
        end = int(self._begins[last - 1] + self._pieces[last - 1, 2])
        return max(int(self._begins[first]), self._start), min(end, self._end)

    def _items(self, window: tuple[int, int]) -> Items:
        parts = []
        for piece in range(*window):
            shard, repeat, taken = self._pieces[piece].tolist()
            begin = int(self._begins[piece])
            draw = np.random.default_rng((self._seed, self._epoch, _SHARD, shard, repeat))
            mine = slice(max(self._start - begin, 0), min(self._end - begin, taken))
            order = draw.permutation(int(self._counts[shard]))[mine]
            parts.append(order + self._firsts[shard] + repeat * self._total)
        items: Items = np.concatenate(parts)
        np.random.default_rng((self._seed, self._epoch, _WINDOW, window[0])).shuffle(items)
        return items


def seeds_of(seed: int, epoch: int, items: Items) -> NDArray[np.uint64]:
    """A number in [0, 2^64) for each item, from which the crop and the choice of a caption are drawn.

    The mixing is SplitMix64's (Steele, Lea and Flood, 2014).
    """
    mixed = np.zeros(len(items), np.uint64)
    for numbers in (np.uint64(seed), np.uint64(epoch), items.astype(np.uint64)):
        mixed = _mix(mixed ^ numbers)
    return mixed


def _mix(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    numbers = numbers + np.uint64(0x9E3779B97F4A7C15)
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))

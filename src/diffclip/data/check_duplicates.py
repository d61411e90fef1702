"""Pictures that are there more than once: the same file, or the same look after another encoding or size.

The look is a 64-bit perceptual hash; two pictures are near when at most `DISTANCE` of its bits differ. Pairs are found
by the tables of Manku, Jain and Das Sarma, "Detecting near-duplicates for web crawling" (WWW 2007): cut into 6 blocks,
two hashes that differ in 4 bits agree in 2 blocks at least, so that the pairs are among those that agree in one of the
15 choices of 2 blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

DISTANCE = 4
"""Bits. Pictures of JPEG quality 30, of half and of twice the size stay within; one cut at its borders does not."""

_BLOCKS = (11, 11, 11, 11, 10, 10)
# edges held at a time; a dense cluster of m hashes has m² of them
_EDGES = 4_000_000

Hashes = NDArray[np.uint64]
Labels = NDArray[np.int64]


def equal_groups(hashes: Hashes) -> list[NDArray[np.int64]]:
    """The places of equal hashes, of those that are there more than once; the largest groups first."""
    return _groups(np.unique(hashes, return_inverse=True)[1])


def near_groups(hashes: Hashes, content: Hashes, skip: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """The places of pictures that look alike, of those that are not the same file; the largest groups first.

    A group is what is connected by pairs that are near; of the same file its first place stands for all.

    Args:
        hashes: [N] looks.
        content: [N] hashes of the files.
        skip: [N] pictures whose look means nothing.
    """
    # one place a file
    places = np.unique(content, return_index=True)[1]
    places = np.sort(places[~skip[places]])
    values, inverse = np.unique(hashes[places], return_inverse=True)
    return [places[group] for group in _groups(_labels(values)[inverse])]


def _groups(labels: Labels) -> list[NDArray[np.int64]]:
    """The places of each label that is there more than once, ascending; larger groups first, then earlier ones."""
    order = np.argsort(labels, kind="stable")
    cuts = np.flatnonzero(np.diff(labels[order])) + 1
    groups = [group for group in np.split(order, cuts) if len(group) > 1]
    return sorted(groups, key=lambda group: (-len(group), int(group[0])))


def _labels(values: Hashes) -> Labels:
    """[N] a number for each of the different hashes `values`, the same for those that pairs connect."""
    labels = np.arange(len(values))
    firsts: list[Labels] = []
    seconds: list[Labels] = []
    held = 0
    for first, second in _near_pairs(values):
        firsts.append(first)
        seconds.append(second)
        held += len(first)
        if held > _EDGES:
            labels = _connected(labels, firsts, seconds)
            firsts, seconds, held = [], [], 0
    return _connected(labels, firsts, seconds)


def _near_pairs(values: Hashes) -> Iterator[tuple[Labels, Labels]]:
    """Places of pairs at most `DISTANCE` apart; a pair may come more than once."""
    for mask in _masks():
        keys = values & mask
        order = np.argsort(keys, kind="stable")
        keys = keys[order]
        left, shift = np.arange(len(keys)), 0
        # each round pairs what lies `shift` apart in a bucket, and only larger buckets go on to the next
        while len(left):
            shift += 1
            left = left[: np.searchsorted(left, len(keys) - shift)]
            left = left[keys[left] == keys[left + shift]]
            first, second = order[left], order[left + shift]
            near = np.bitwise_count(values[first] ^ values[second]) <= DISTANCE
            if near.any():
                yield first[near], second[near]


def _masks() -> list[np.uint64]:
    starts = np.cumsum([0, *_BLOCKS]).tolist()
    blocks = [((1 << size) - 1) << start for size, start in zip(_BLOCKS, starts, strict=False)]
    return [np.uint64(sum(chosen)) for chosen in combinations(blocks, len(blocks) - DISTANCE)]


def _connected(labels: Labels, firsts: list[Labels], seconds: list[Labels]) -> Labels:
    """`labels` with those of connected places made one."""
    if not firsts:
        return labels
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    first, second = labels[np.concatenate(firsts)], labels[np.concatenate(seconds)]
    shape = (len(labels), len(labels))
    graph = coo_array((np.ones(len(first), dtype=np.bool_), (first, second)), shape=shape)
    made: Labels = connected_components(graph, directed=False)[1].astype(np.int64)
    return made[labels]

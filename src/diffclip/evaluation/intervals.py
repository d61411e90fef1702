"""95 % intervals of a metric: the percentile bootstrap over items, Efron & Tibshirani (1993), chapter 13.

Items that belong together (the captions of one picture) form a cluster and are resampled together; treating
them as independent would make the interval too narrow. Where every outcome is equal the bootstrap collapses
to a point, which says nothing about what was not seen: there the Wilson interval (1927) stands in, with the
clusters as its trials. It is one of proportions; numbers without bounds have nothing in its place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diffclip.errors import InputError

RESAMPLES = 1000
Interval = tuple[float, float]
Bounds = tuple[float, float] | None
"""What a number lies between: (0, 1), (-1, 1), or None where it has no such bounds."""
SHARE: Bounds = (0.0, 1.0)

_LEVEL = 0.95
_Z = 1.959963984540054  # the normal quantile of (1 + _LEVEL) / 2
_DRAWS_AT_ONCE = 1 << 22  # 32 MiB of indices


def wilson(successes: float, trials: float) -> Interval:
    """The Wilson score interval of a proportion; `trials` may be an effective number, not whole."""
    share, z2 = successes / trials, _Z**2 / trials
    centre = (share + z2 / 2) / (1 + z2)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials)) / (1 + z2)
    return (0.0 if share == 0 else centre - half), (1.0 if share == 1 else centre + half)


def mean_interval(
    values: ArrayLike, clusters: ArrayLike | None = None, seed: int = 0, bounds: Bounds = SHARE
) -> Interval:
    """The interval of the mean of `values` [n], such as hits of 0 and 1.

    Args:
        values: [n] finite numbers.
        clusters: [n] cluster of each value (any integers); None: every value by itself.
        seed: of the resampling; equal seeds and sizes draw the same items, whatever the values are.
        bounds: of the values.

    Returns:
        (low, high). If every cluster has the same mean (all right, all wrong, a single item): of shares Wilson
        with as many trials as clusters; between −1 and 1 Wilson's upper bound on the share not seen, z²/(n + z²),
        to either side; without bounds, or outside them, the mean twice.

    Raises:
        InputError: no values, or one that is not finite.
    """
    sums, sizes = by_cluster(values, clusters)
    first = float(sums[0] / sizes[0])
    if np.all(sums == first * sizes):
        inside = bounds is not None and bounds[0] <= first <= bounds[1]
        if inside and bounds == SHARE:
            return wilson(first * len(sums), len(sums))
        return _around(first, len(sums), bounds if inside else None)
    return _percentiles(_resampled_means(sums, sizes, seed))


def mean_intervals(
    values: ArrayLike, clusters: ArrayLike | None = None, seed: int = 0, bounds: Sequence[Bounds] = ()
) -> NDArray[np.float64]:
    """The intervals of the means of many columns over the same items: `mean_interval` of each, [columns, 2].

    Items are drawn once for all columns, so that thousands take about a second.

    Args:
        values: [n, columns] finite numbers.
        clusters, seed: as for `mean_interval`.
        bounds: of each column; where none are given, all columns are shares.

    Raises:
        InputError: no values, or one that is not finite.
    """
    table = np.asarray(values, dtype=np.float64)
    if table.ndim != 2 or not table.size or not np.isfinite(table).all():
        raise InputError(f"intervals need a table of finite numbers, got shape {list(table.shape)}")
    sizes = by_cluster(table[:, 0], clusters)[1]
    index = np.arange(len(table)) if clusters is None else np.unique(clusters, return_inverse=True)[1]
    sums = np.zeros((len(sizes), table.shape[1]))
    np.add.at(sums, index, table)
    counts = np.concatenate(
        [
            np.bincount((draws + np.arange(len(draws))[:, None] * len(sizes)).ravel(), minlength=draws.size)
            for draws in _draws(len(sizes), seed)
        ]
    ).reshape(RESAMPLES, len(sizes))
    weights = counts.astype(np.float64)
    means = weights @ sums / (weights @ sizes)[:, None]
    found: NDArray[np.float64] = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2], axis=0).T
    for column in np.flatnonzero(np.all(sums == sums[0] / sizes[0] * sizes[:, None], axis=0)):
        own = bounds[column] if bounds else SHARE
        found[column] = mean_interval(table[:, column], clusters, seed, own)
    return found


def difference_interval(
    values: ArrayLike,
    others: ArrayLike,
    clusters: ArrayLike | None = None,
    seed: int = 0,
    bounds: Bounds = SHARE,
) -> Interval:
    """The interval of mean(values) − mean(others), outcomes of two models on the same items, paired; `bounds` are those
    of an outcome.

    An interval without 0 in it says that the models differ on items like these. Where all n differences are
    equal, the margin is Wilson's upper bound on the share of differences not seen, z²/(n + z²); of outcomes without
    bounds, in whose unit no share is, there is none.

    Raises:
        InputError: no values, one that is not finite, or another number of them.
    """
    first, second = np.asarray(values, dtype=np.float64), np.asarray(others, dtype=np.float64)
    if first.shape != second.shape:
        raise InputError(
            f"outcomes of {first.size} and {second.size} items cannot be paired: use the same set"
        )
    sums, sizes = by_cluster(first - second, clusters)
    difference = float(sums[0] / sizes[0])
    if np.all(sums == difference * sizes):
        reach = None if bounds is None else (bounds[0] - bounds[1], bounds[1] - bounds[0])
        return _around(difference, len(sums), reach)
    return _percentiles(_resampled_means(sums, sizes, seed))


def class_mean_interval(right: ArrayLike, labels: ArrayLike, seed: int = 0) -> Interval:
    """The interval of mean per-class recall: pictures are resampled, and a class that none of them has is
    left out.

    Args:
        right: [n] 0 or 1, whether the picture was classified right.
        labels: int [n], its class.

    Returns:
        (low, high). If all are right, or all wrong, Wilson with K²/Σ(1/n_c) trials: as many as would give a
        plain mean the variance that the mean of K classes with n_c pictures each has.

    Raises:
        InputError: no values, or one that is not finite.
    """
    hits, _ = by_cluster(right, None)
    classes, index = np.unique(np.asarray(labels), return_inverse=True)
    counts = np.bincount(index)
    if np.all(hits == hits[0]):
        trials = len(classes) ** 2 / float((1 / counts).sum())
        return wilson(hits[0] * trials, trials)
    means = []
    for draws in _draws(len(hits), seed):
        cell = index[draws] + np.arange(len(draws))[:, None] * len(classes)
        shape, cells = (len(draws), len(classes)), len(draws) * len(classes)
        drawn = np.bincount(cell.ravel(), minlength=cells).reshape(shape)
        good = np.bincount(cell.ravel(), weights=hits[draws].ravel(), minlength=cells).reshape(shape)
        means.append((good / np.maximum(drawn, 1)).sum(1) / (drawn > 0).sum(1))
    return _percentiles(np.concatenate(means))


def by_cluster(
    values: ArrayLike, clusters: ArrayLike | None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum and number of the values of each cluster."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise InputError(f"an interval needs a row of finite numbers, got shape {list(array.shape)}")
    if clusters is None:
        return array, np.ones_like(array)
    index = np.unique(np.asarray(clusters), return_inverse=True)[1]
    if index.shape != array.shape:
        raise InputError(f"{index.size} clusters for {array.size} values: give one for each value")
    return np.bincount(index, weights=array).astype(np.float64), np.bincount(index).astype(np.float64)


def _around(value: float, trials: int, bounds: Bounds) -> Interval:
    """What may be left of a value that all trials have, between its bounds."""
    if bounds is None:
        return value, value
    margin = wilson(0, trials)[1]
    return max(bounds[0], value - margin), min(bounds[1], value + margin)


def _draws(items: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Index blocks [r, items] that make up `RESAMPLES` rows, a bounded number at a time."""
    generator = np.random.default_rng(seed)
    step = max(1, _DRAWS_AT_ONCE // items)
    for start in range(0, RESAMPLES, step):
        yield generator.integers(items, size=(min(step, RESAMPLES - start), items))


def _resampled_means(sums: NDArray[np.float64], sizes: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    uniform = bool(np.all(sizes == sizes[0]))
    means = []
    for draws in _draws(len(sums), seed):
        total = sizes[0] * len(sums) if uniform else sizes[draws].sum(1)
        means.append(sums[draws].sum(1) / total)
    return np.concatenate(means)


def _percentiles(means: NDArray[np.float64]) -> Interval:
    low, high = np.quantile(means, [(1 - _LEVEL) / 2, (1 + _LEVEL) / 2])
    return float(low), float(high)

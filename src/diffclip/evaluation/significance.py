"""Whether a difference between two models is more than luck: paired tests, published counts, seeds, several tests.

A test over items asks about these two trained models and other test items; a test over seeds asks about the
two methods. A p from the first says nothing about another training run. All tests are two-sided. Student's t
is in closed form and binomials are whole numbers, so that this needs no SciPy.
"""

from __future__ import annotations

import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from diffclip.errors import InputError
from diffclip.evaluation.intervals import Interval, by_cluster, wilson
from diffclip.evaluation.sign_flips import flip_p

ALPHA = 0.05
POWER = 0.8
_ROUNDING = 1e-12
_GRID = 20_000


@dataclass(frozen=True)
class PairedTest:
    """Two models on the same items: mean(first) − mean(second) and the p of no difference.

    `informative` of the `count` items (clusters, where there are any) tell the two apart; the others cannot
    count for either.
    """

    test: Literal["exact McNemar", "sign flips"]
    difference: float
    p: float
    count: int
    informative: int


@dataclass(frozen=True)
class CountTest:
    """Two published counts of which the items are not known: difference of the shares, 95 % interval, p.

    `paired_p` bounds what McNemar's test on the items would give: from the case where the worse model is
    right about nothing else than the better one to the case where they share as little as possible. None
    where the two were not measured on the same number of items.
    """

    difference: float
    low: float
    high: float
    p: float
    paired_p: Interval | None


@dataclass(frozen=True)
class SeedSummary:
    """Numbers of n seeds: mean, standard deviation (n − 1), and the 95 % interval of the mean by Student's t.

    `sd`, `low` and `high` are None for a single seed.
    """

    n: int
    mean: float
    sd: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class SeedTest:
    """The difference of two methods, paired by seed.

    `p` is that of the paired t-test and `detectable` the smallest true difference that this number of seeds,
    with this spread, would have found in 80 % of all cases at 5 %. Both are None for one seed, and where
    the differences are equal but for rounding: then the spread was not seen.
    """

    difference: SeedSummary
    p: float | None
    detectable: float | None


def paired_test(
    first: ArrayLike, second: ArrayLike, clusters: ArrayLike | None = None, seed: int = 0
) -> PairedTest:
    """Compare the outcomes [n] of two models on the same n items.

    Outcomes of 0 and 1 without clusters: the exact McNemar test (McNemar 1947, Psychometrika 12). Otherwise
    (captions of one picture, accuracies of episodes): the sign-flip test of Fisher (1935), Section 21, on the
    clusters' sums of differences, which are as likely positive as negative where the models are equal. Up to
    13 differing clusters all sign patterns are tried; from there on random ones with the observed pattern
    counted in, so that p is never 0 (Phipson & Smyth 2010, arXiv:1603.05766).

    Args:
        clusters: [n] cluster of each item (any integers); None: every item by itself.
        seed: of the random flips.

    Raises:
        InputError: no items, unequal numbers of them, or one that is not finite.
    """
    a, b = _outcomes(first), _outcomes(second)
    if a.shape != b.shape:
        raise InputError(f"outcomes of {a.size} and {b.size} items cannot be paired: use the same set")
    sums, sizes = by_cluster(a - b, clusters)
    difference = float(sums.sum() / sizes.sum())
    sums = np.round(sums, 12)  # so that 0.3 − 0.2 and 0.2 − 0.1 are one number
    informative = int(np.count_nonzero(sums))
    if clusters is None and np.isin(a, (0, 1)).all() and np.isin(b, (0, 1)).all():
        p = mcnemar(int((sums > 0).sum()), int((sums < 0).sum()))
        return PairedTest("exact McNemar", difference, p, len(sums), informative)
    return PairedTest("sign flips", difference, flip_p(sums[sums != 0], seed), len(sums), informative)


def mcnemar(only_first: int, only_second: int) -> float:
    """The exact two-sided p of McNemar's test, from the numbers of items that only one of two models gets right."""
    n = only_first + only_second
    term, tail = 1, 0
    for k in range(min(only_first, only_second) + 1):
        tail += term
        term = term * (n - k) // (k + 1)
    # whole numbers: for thousands of items 2ⁿ is no float
    return min(1.0, 2 * tail / (1 << n))


def compare_counts(right: int, count: int, other_right: int, other_count: int) -> CountTest:
    """Compare two published accuracies by their counts: Fisher's exact test (1922, two-sided by probability)
    and Newcombe's interval (1998, Statistics in Medicine 17, method 10).

    The paper's MMVP gap (Section 4.4: 27.6 % against 21.9 %, which are 29 and 23 of 105 pairs) is 5.7 points
    (−6.0 to 17.2) with p = 0.42. On the pairs themselves, which are not published, McNemar's p would lie
    between 0.031 and 0.49.

    Raises:
        InputError: no items, or a number of right ones outside 0 … count.
    """
    for part, whole in ((right, count), (other_right, other_count)):
        if whole < 1 or not 0 <= part <= whole:
            raise InputError(f"{part} of {whole} right is no count: give 0 to all of at least one item")
    difference = right / count - other_right / other_count
    (low, high), (other_low, other_high) = wilson(right, count), wilson(other_right, other_count)
    down = math.hypot(right / count - low, other_high - other_right / other_count)
    up = math.hypot(high - right / count, other_right / other_count - other_low)
    bounds = None
    if count == other_count:
        more, less = max(right, other_right), min(right, other_right)
        apart = min(less, count - more)
        bounds = mcnemar(more - less, 0), mcnemar(more - less + apart, apart)
    p = _fisher(right, count, other_right, other_count)
    return CountTest(difference, difference - down, difference + up, p, bounds)


def over_seeds(values: Sequence[float]) -> SeedSummary:
    """Mean, standard deviation and t interval of one number a seed.

    Raises:
        InputError: no values, or one that is not finite.
    """
    numbers = _outcomes(values).tolist()
    n, mean = len(numbers), statistics.fmean(numbers)
    if n == 1:
        return SeedSummary(1, mean, None, None, None)
    sd = statistics.stdev(numbers)
    half = student_quantile(n - 1) * sd / math.sqrt(n)
    return SeedSummary(n, mean, sd, mean - half, mean + half)


def paired_by_seed(first: Mapping[int, float], second: Mapping[int, float]) -> SeedTest:
    """Compare two methods by their numbers of each training seed: the paired t-test (Student 1908).

    Raises:
        InputError: no seeds, other seeds in one than in the other, or a number that is not finite.
    """
    if first.keys() != second.keys():
        odd = ", ".join(map(str, sorted(first.keys() ^ second.keys())))
        raise InputError(f"only one of the two models has seed {odd}: compare seeds that both have")
    _outcomes(list(first.values())), _outcomes(list(second.values()))
    difference = over_seeds([first[seed] - second[seed] for seed in first])
    sd, n = difference.sd, difference.n
    if sd is None or sd <= _ROUNDING:
        return SeedTest(difference, None, None)
    return SeedTest(
        difference, student_p(difference.mean / (sd / math.sqrt(n)), n - 1), detectable_difference(sd, n)
    )


def detectable_difference(sd: float, n: int, alpha: float = ALPHA) -> float:
    """The smallest true mean difference that a paired t-test of `n` ≥ 2 differences with standard deviation `sd`
    finds significant at `alpha` in 80 % of all cases (noncentral t; Cohen 1988, Section 2.3)."""
    return _detectable_shift(n, alpha) * sd / math.sqrt(n)


def student_p(t: float, freedom: int) -> float:
    """The two-sided p of Student's t with whole degrees of freedom (Abramowitz & Stegun 26.7.3 and 26.7.4), not
    below the rounding of a float."""
    angle = math.atan(abs(t) / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (k - 1) / k
    inside = 2 / math.pi * (angle + sine * total) if odd else sine * total
    return min(1.0, max(1 - inside, sys.float_info.epsilon))


@cache
def student_quantile(freedom: int, alpha: float = ALPHA) -> float:
    """The two-sided quantile of Student's t, by default that of 95 %: 4.303 for 2 degrees of freedom."""
    return _bisect(lambda t: alpha - student_p(t, freedom))


def holm(ps: Sequence[float]) -> list[float]:
    """The p of several tests of one table, corrected so that the chance of any false one stays at 5 % (Holm 1979,
    Scandinavian Journal of Statistics 6), in the given order.

    Raises:
        InputError: a p outside 0 … 1 or NaN.
    """
    for p in ps:
        if not 0 <= p <= 1:
            raise InputError(f"p = {p} is no probability: it must lie between 0 and 1")
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[index]))
        corrected[index] = largest
    return corrected


def _outcomes(values: ArrayLike) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size or not np.isfinite(array).all():
        raise InputError(f"a test needs a row of finite numbers, got shape {list(array.shape)}")
    return array


def _fisher(right: int, count: int, other_right: int, other_count: int) -> float:
    """The share of the tables with these margins that are no more probable than the given one."""
    total = right + other_right
    weight = math.comb(other_count, total) if total <= other_count else math.comb(count, total - other_count)
    given = math.comb(count, right) * math.comb(other_count, other_right)
    below = whole = 0
    for k in range(max(0, total - other_count), min(count, total) + 1):
        whole += weight
        below += weight if weight <= given else 0
        weight = weight * (count - k) * (total - k) // ((k + 1) * (other_count - total + k + 1))
    return below / whole


# a report asks for it with every comparison, and it takes a second
@cache
def _detectable_shift(n: int, alpha: float) -> float:
    """The smallest shift of the noncentral t of n − 1 degrees of freedom with enough power."""
    quantile = student_quantile(n - 1, alpha)
    return _bisect(lambda shift: _t_power(shift, quantile, n - 1) - POWER)


def _t_power(shift: float, quantile: float, freedom: int) -> float:
    """P(|T| > quantile) of the noncentral t: the normal tails, averaged over the sample's standard deviation."""
    edge = (1 + 8 / math.sqrt(freedom)) / _GRID
    s = (torch.arange(_GRID, dtype=torch.float64) + 0.5) * edge
    density = torch.softmax((freedom - 1) * s.log() - freedom * s.square() / 2, dim=0)
    tails = torch.special.ndtr(shift - quantile * s) + torch.special.ndtr(-shift - quantile * s)
    return float((density * tails).sum())


def _bisect(rising: Callable[[float], float]) -> float:
    """Where a rising function that is negative at 0 crosses 0."""
    low, high = 0.0, 1.0
    while rising(high) < 0:
        low, high = high, 2 * high
    while high - low > _ROUNDING * high:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < 0 else (low, middle)
    return high

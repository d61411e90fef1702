"""Intervals and tests: over items (one trained model), and over training runs (a method).

Over items, an interval holds for these trained weights and other test items. Values are fractions; tests are two-sided
unless they say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from diffclip.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

ALPHA = 0.05
POWER = 0.8
Interval = tuple[float, float]
SHARE: Interval = (0.0, 1.0)
Bounds = Interval | None

_RESAMPLES = 1000
_WEIGHTS_AT_ONCE = 1 << 22  # 32 MiB
_NOTHING = 1e-12  # smaller differences are rounding
_ROUNDING = 1e-6  # the same for outcomes of items, which come from float32


# Over items


def wilson(successes: float, trials: float) -> Interval:
    """Return the 95 % Wilson interval of a proportion; `trials` may be an effective number."""
    from statsmodels.stats.proportion import proportion_confint

    low, high = proportion_confint(successes, trials, alpha=ALPHA, method="wilson")
    return float(low), float(high)


def mean_interval(values: ArrayLike, clusters: ArrayLike | None = None, bounds: Bounds = SHARE) -> Interval:
    """Return the 95 % bootstrap interval of a mean over items (percentiles; Efron & Tibshirani 1993, chapter 13).

    Args:
        values: [n] outcomes of items.
        clusters: [n]; items of one cluster (the captions of an image) are resampled together.
        bounds: limits of the metric. If all outcomes are equal, the half-width is Wilson's upper limit for 0 successes
            in one trial per cluster, cut at the limits; without limits it is 0.
    """
    low, high = mean_intervals(np.asarray(values, dtype=np.float64)[:, None], clusters, [bounds])[0]
    return float(low), float(high)


def mean_intervals(
    values: NDArray[np.float64], clusters: ArrayLike | None, bounds: Sequence[Bounds]
) -> NDArray[np.float64]:
    """Return `mean_interval` of each column of `values` [n, m], as [m, 2]; all columns share the resamples."""
    sums = _by_cluster(np.column_stack([values, np.ones(len(values))]), clusters)
    drawn, shares = _resample(sums), sums[:, :-1] / sums[:, -1:]
    intervals = _percentiles(drawn[:, :-1] / drawn[:, -1:]).T
    margin = wilson(0, len(sums))[1]
    for column, limits in enumerate(bounds):
        value = shares[0, column]
        if limits is not None and _all_equal(shares[:, column]):
            intervals[column] = max(limits[0], value - margin), min(limits[1], value + margin)
    return intervals


def class_mean_interval(
    hits: NDArray[np.float64], labels: NDArray[np.int64], clusters: ArrayLike | None = None
) -> Interval:
    """Return the 95 % bootstrap interval of the mean over classes of each class's accuracy.

    A class that is missing in a resample is left out of its mean; `clusters` as in `mean_interval`. If all hits are
    equal, the interval is Wilson's with K² / Σ 1/n_c trials, at most as many as there are clusters.
    """
    from scipy.sparse import csr_matrix, hstack

    _, index, counts = np.unique(labels, return_inverse=True, return_counts=True)
    cells = np.arange(len(hits)), index
    by_class = hstack([csr_matrix((values, cells)) for values in (np.ones(len(hits)), hits)], "csr")
    sums = _by_cluster(by_class, clusters)
    if _all_equal(hits):
        trials = min(len(counts) ** 2 / float((1 / counts).sum()), sums.shape[0])
        return wilson(hits[0] * trials, trials)
    drawn, right = np.split(_resample(sums), 2, axis=1)
    low, high = _percentiles((right / np.maximum(drawn, 1)).sum(1) / (drawn > 0).sum(1))
    return float(low), float(high)


def sums_interval(
    values: NDArray[np.float64], statistic: Callable[[NDArray[np.float64]], NDArray[np.float64]]
) -> Interval:
    """Return the 95 % bootstrap interval of a share that is computed from sums over items.

    Args:
        values: [n, …], summed over the items of a resample.
        statistic: from such sums [r, …] to shares [r]. If all are equal, the margin is Wilson's with items as trials.
    """
    shares = statistic(_resample(values.reshape(len(values), -1)).reshape(-1, *values.shape[1:]))
    low, high = _percentiles(shares)
    margin = wilson(0, len(values))[1] if _all_equal(shares) else 0.0
    return max(0.0, float(low) - margin), min(1.0, float(high) + margin)


def _all_equal(values: NDArray[np.float64]) -> bool:
    return np.allclose(values, values[0], rtol=_ROUNDING, atol=_ROUNDING)


def _by_cluster(values: Any, clusters: ArrayLike | None) -> Any:
    """Sum the rows of `values` [n, m], dense or sparse, over each of k clusters: [k, m]."""
    from scipy.sparse import csr_matrix

    if clusters is None:
        return values
    _, index = np.unique(np.asarray(clusters), return_inverse=True)
    return csr_matrix((np.ones(len(index)), (index, np.arange(len(index))))) @ values


def _resample(sums: Any) -> NDArray[np.float64]:
    """Draw rows of `sums` [k, m], dense or sparse, with replacement, and sum each resample: [1000, m]."""
    items, generator = sums.shape[0], np.random.default_rng(0)
    step, parts = max(1, _WEIGHTS_AT_ONCE // items), []
    for start in range(0, _RESAMPLES, step):
        rows = min(step, _RESAMPLES - start)
        drawn = generator.integers(items, size=(rows, items)) + np.arange(rows)[:, None] * items
        counts = np.bincount(drawn.ravel(), minlength=rows * items).reshape(rows, items)
        parts.append(counts.astype(np.float64) @ sums)
    return np.concatenate(parts)


def _percentiles(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.quantile(values, [ALPHA / 2, 1 - ALPHA / 2], axis=0)


# Over training runs


class RunTest(NamedTuple):
    """Mean of one arm's runs minus that of another, with its 95 % interval, and p. `p_equivalent` is the p of two
    one-sided tests (Schuirmann 1987): the difference lies inside the margin; NaN without one."""

    difference: float
    low: float
    high: float
    p: float
    p_equivalent: float = math.nan


def compare_runs(values: ArrayLike, against: ArrayLike, paired: bool, margin: float | None = None) -> RunTest:
    """Compare the runs of two arms by a t test: paired, or Welch's, which assumes no equal variances.

    If no run varies, so that no t is defined, p is 1 for equal values and 0 for a constant difference.

    Args:
        values: [n] at least two; one per run.
        against: [m]; n if `paired`, where run i has the seed of run i of `values`.
        margin: differences inside ±margin count as equivalent.

    Raises:
        InputError: a value is not a finite number.
    """
    from scipy import stats

    first, second = (np.asarray(runs, dtype=np.float64) for runs in (values, against))
    if not (np.isfinite(first).all() and np.isfinite(second).all()):
        raise InputError("outcomes of runs must be finite numbers: leave runs without a result out")
    difference = float(first.mean() - second.mean())
    varying = [first - second] if paired else [first, second]
    if max(map(np.ptp, varying)) <= _NOTHING:
        return _constant(difference, margin)
    test = stats.ttest_rel if paired else partial(stats.ttest_ind, equal_var=False)
    result = test(first, second)
    low, high = result.confidence_interval(1 - ALPHA)
    found = RunTest(difference, float(low), float(high), float(result.pvalue))
    if margin is None:
        return found
    above = test(first + margin, second, alternative="greater").pvalue
    below = test(first - margin, second, alternative="less").pvalue
    return found._replace(p_equivalent=float(max(above, below)))


def compare_pooled(
    runs: pd.DataFrame, arm: str, against: str, paired: bool, margin: float | None = None
) -> RunTest:
    """Compare two arms by a linear model whose residual is pooled over all arms: `value ~ arm (+ run if paired)`.

    For designs of two or three seeds. One arm whose runs spread more than the others' decides every interval.

    Args:
        runs: columns `model`, `run` (what pairs the arms), `value`; all arms to pool.
    """
    from scipy import stats
    from statsmodels.formula.api import ols

    fit = ols(f"value ~ 0 + C(model){' + C(run)' * paired}", runs).fit()
    signs = {f"C(model)[{arm}]": 1.0, f"C(model)[{against}]": -1.0}
    test = fit.t_test([signs.get(term, 0.0) for term in fit.params.index])
    difference, error = test.effect.item(), test.sd.item()
    if error < _NOTHING:
        return _constant(difference, margin)
    low, high = test.conf_int(ALPHA)[0].tolist()
    found = RunTest(difference, low, high, float(test.pvalue))
    if margin is None:
        return found
    return found._replace(p_equivalent=float(stats.t.sf((margin - abs(difference)) / error, fit.df_resid)))


def holm(p: pd.Series) -> pd.Series:
    """Correct p-values for their number (Holm 1979); NaN are no tests."""
    # statsmodels' `multipletests` collects garbage each time, which takes longer than the rest of a verdict
    known = p.astype("float64").dropna().sort_values()
    return (known * np.arange(len(known), 0, -1)).cummax().clip(upper=1.0).reindex(p.index)


def detectable(sd: float, runs: int, df: int, comparisons: int = 1) -> float:
    """Return the true difference of two arms that the t test finds in 80 % of all cases.

    Args:
        sd: standard deviation of a run within an arm. Paired runs are taken as uncorrelated.
        runs: of each arm.
        df: degrees of freedom of the test: runs − 1 if they are paired, 2·(runs − 1) if not, or those of the residual.
        comparisons: the size of the family; Holm tests its smallest p at 5 % over this number.
    """
    from scipy import optimize, stats

    critical = stats.t.ppf(1 - ALPHA / comparisons / 2, df)

    def excess(effect: float) -> float:  # the other tail is below 1e-4 at this power
        return float(stats.nct.sf(critical, df, effect)) - POWER

    return float(optimize.brentq(excess, 0, 2 * critical + 2)) * sd * math.sqrt(2 / runs)


def above_chance(values: ArrayLike, chance: float, low: ArrayLike, high: ArrayLike) -> float:
    """Return the one-sided p-value of the null hypothesis "the mean over seeds is not above chance".

    The variance is the sum of the variances over seeds and over items, because all seeds share the items.

    Args:
        values: [n] one value per seed, with the ends `low` and `high` [n] of their 95 % intervals over items.
    """
    from scipy import stats

    numbers = np.asarray(values, dtype=np.float64)
    n = len(numbers)
    items = np.mean(((np.asarray(high) - np.asarray(low)) / (2 * stats.norm.ppf(0.975))) ** 2)
    seeds = numbers.var(ddof=1) / n if n > 1 else 0.0
    error = math.sqrt(items + seeds)
    if error == 0:
        return float(numbers.mean() <= chance)
    # Welch-Satterthwaite: the items' share of the variance has practically unlimited degrees of freedom
    df = (n - 1) * (error**2 / seeds) ** 2 if seeds > 0 else math.inf
    return float(stats.t.sf((numbers.mean() - chance) / error, df))


def run_sd(values: pd.DataFrame) -> tuple[float, int]:
    """Return the standard deviation of runs within arms, pooled over arms, and its degrees of freedom.

    Args:
        values: columns `model`, `seed` and `value`; several values of a run (draws) are averaged.
    """
    runs = without_copies(values).dropna(subset=["seed", "value"]).groupby(["model", "seed"])["value"].mean()
    deviations = runs - runs.groupby("model").transform("mean")
    df = len(runs) - runs.index.get_level_values("model").nunique()
    return (math.sqrt(float((deviations**2).sum()) / df), df) if df else (math.nan, 0)


def without_copies(records: pd.DataFrame) -> pd.DataFrame:
    """Leave out the arms at their chosen rates (`CLIP`), whose rows repeat those of `CLIP@5e-4`."""
    return records[~records["model"].isin(records["model"].str.extract("(.*)@", expand=False))]


def _constant(difference: float, margin: float | None) -> RunTest:
    p_equivalent = math.nan if margin is None else float(abs(difference) >= margin)
    return RunTest(difference, difference, difference, float(abs(difference) <= _NOTHING), p_equivalent)

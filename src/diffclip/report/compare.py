"""How much each model differs from CLIP, and whether the difference is more than noise.

Several seeds: differences are paired by seed, and from three pairs on the mean has a Student t interval,
which covers the luck of training. Two pairs give a range and no verdict. One pair compares two trained
models: its interval covers the luck of the test set only (Newcombe 1998, method 10, from the intervals of
both; it ignores that both models saw the same items, so it is rather too wide).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from diffclip.evaluation.protocol import method_of
from diffclip.report.series import Collection, Result, Series, baseline_of

# two-sided 95 % quantiles of Student's t for 1 … 30 degrees of freedom
_T = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
ENOUGH_SEEDS = 3

Outcome = Literal["higher", "lower", "unclear"]


class Measure(NamedTuple):
    """What was measured: numbers of one measure may be compared, others not."""

    task: str
    dataset: str
    split: str
    metric: str
    protocol: str


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval (None where there is none); `values` are its parts by seed."""

    mean: float
    low: float | None
    high: float | None
    values: dict[int | None, float]

    @property
    def n(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Comparison:
    """`series` minus `baseline` in one measure."""

    measure: Measure
    series: Series
    baseline: Series
    own: Estimate
    reference: Estimate
    difference: Estimate

    @property
    def outcome(self) -> Outcome:
        """Whether the interval lies on one side of 0; two seeds never tell."""
        low, high = self.difference.low, self.difference.high
        if self.difference.n == 2 or low is None or high is None or low <= 0 <= high:
            return "unclear"
        return "higher" if low > 0 else "lower"


def measure_of(result: Result) -> Measure:
    """The measure that a result belongs to."""
    record = result.record
    return Measure(record.task, record.dataset, record.split, record.metric, method_of(record.protocol))


def by_series(results: Sequence[Result], measure: Measure) -> dict[Series, dict[int | None, Result]]:
    """The results of one measure that have a value, by series and seed."""
    found: dict[Series, dict[int | None, Result]] = {}
    for result in results:
        if measure_of(result) == measure and result.record.value is not None:
            found.setdefault(result.series, {})[result.seed] = result
    return found


def estimate(seeds: dict[int | None, Result]) -> Estimate:
    """The mean over seeds; one seed keeps the interval of its record."""
    values = {seed: result.value for seed, result in seeds.items()}
    if len(values) == 1:
        record = next(iter(seeds.values())).record
        return Estimate(next(iter(values.values())), record.low, record.high, values)
    return _over_seeds(values)


def compare(collection: Collection) -> list[Comparison]:
    """Every series against its CLIP in every measure that both have with a seed in common."""
    comparisons = []
    for measure in dict.fromkeys(measure_of(result) for result in collection.results):
        found = by_series(collection.results, measure)
        for series in (one for one in collection.series if one in found):
            baseline = baseline_of(series, [one for one in collection.series if one in found])
            if baseline is None:
                continue
            shared = [seed for seed in found[series] if seed in found[baseline]]
            if shared:
                own = {seed: found[series][seed] for seed in shared}
                reference = {seed: found[baseline][seed] for seed in shared}
                comparisons.append(
                    Comparison(
                        measure,
                        series,
                        baseline,
                        estimate(own),
                        estimate(reference),
                        difference(own, reference),
                    )
                )
    return comparisons


def difference(own: dict[int | None, Result], reference: dict[int | None, Result]) -> Estimate:
    """The mean of `own` − `reference`, which have the same seeds, with the interval explained above."""
    values = {seed: own[seed].value - reference[seed].value for seed in own}
    if len(values) > 1:
        return _over_seeds(values)
    (seed,) = values
    ours, theirs = own[seed].record, reference[seed].record
    if None in (ours.low, ours.high, theirs.low, theirs.high):
        return Estimate(values[seed], None, None, values)
    a, b = own[seed].value, reference[seed].value
    down = math.hypot(a - (ours.low or 0.0), (theirs.high or 0.0) - b)
    up = math.hypot((ours.high or 0.0) - a, b - (theirs.low or 0.0))
    return Estimate(a - b, a - b - down, a - b + up, values)


def _over_seeds(values: dict[int | None, float]) -> Estimate:
    """Two seeds: their range. More: the t interval of the mean."""
    numbers = list(values.values())
    mean = statistics.fmean(numbers)
    if len(numbers) < ENOUGH_SEEDS:
        return Estimate(mean, min(numbers), max(numbers), values)
    quantile = _T[len(numbers) - 2] if len(numbers) - 2 < len(_T) else 1.96
    half = quantile * statistics.stdev(numbers) / math.sqrt(len(numbers))
    return Estimate(mean, mean - half, mean + half, values)

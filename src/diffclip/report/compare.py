"""How much each model differs from CLIP, and whether the difference is more than noise.

Several seeds: differences are paired by seed, and from three pairs on the mean has a Student t interval and
the p of the paired t-test, which cover the luck of training. Two pairs give a range and no verdict. One pair
compares two trained models: its interval and p cover the luck of the test set only, see `report.paired`.
Draws of a task (episodes, what a probe holds out) are averaged before anything else. Where several comparisons
are shown together, their p are corrected for their number (`corrected`).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from diffclip.evaluation.outcomes import ItemOutcomes
from diffclip.evaluation.protocol import method_of
from diffclip.evaluation.significance import ALPHA, holm, over_seeds, paired_by_seed
from diffclip.report.kept import kept
from diffclip.report.paired import Basis, paired_difference
from diffclip.report.series import Collection, Measured, Result, Series, baseline_of

ENOUGH_SEEDS = 3

Outcome = Literal["higher", "lower", "unclear"]
Seeds = Mapping[int | None, Measured]
"""One series in one measure, by training seed."""


class Measure(NamedTuple):
    """What was measured: numbers of one measure may be compared, others not."""

    task: str
    dataset: str
    split: str
    metric: str
    protocol: str


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval (None where there is none); `values` are its parts by seed.

    `sd` (n − 1) is over training seeds; of a single one, over its `draws`. None where there is one of both.
    """

    mean: float
    low: float | None
    high: float | None
    values: dict[int | None, float]
    sd: float | None = None
    draws: int = 1

    @property
    def n(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Comparison:
    """`series` minus `baseline` in one measure.

    `p` is that of the difference by itself, `shown_p` corrected for the `tests` that are shown together with it;
    both None where nothing can be tested. `detectable` is the difference that this number of seeds would have found
    in 80 % of all cases.
    """

    measure: Measure
    series: Series
    baseline: Series
    own: Estimate
    reference: Estimate
    difference: Estimate
    basis: Basis
    p: float | None = None
    detectable: float | None = None
    holm_p: float | None = None
    tests: int = 1

    @property
    def shown_p(self) -> float | None:
        return self.p if self.holm_p is None else self.holm_p

    @property
    def outcome(self) -> Outcome:
        """Whether the difference is more than luck: `shown_p` below 5 %; two seeds never tell."""
        if self.shown_p is None or self.shown_p >= ALPHA or self.difference.mean == 0:
            return "unclear"
        return "higher" if self.difference.mean > 0 else "lower"


def measure_of(result: Result) -> Measure:
    """The measure that a result belongs to."""
    record = result.record
    return Measure(record.task, record.dataset, record.split, record.metric, method_of(record.protocol))


def by_series(results: Sequence[Result], measure: Measure) -> dict[Series, dict[int | None, Measured]]:
    """The results of one measure that have a value, by series and training seed."""
    found: dict[Series, dict[int | None, list[Result]]] = {}
    for result in results:
        if measure_of(result) == measure and result.record.value is not None:
            found.setdefault(result.series, {}).setdefault(result.seed, []).append(result)
    return {
        series: {seed: Measured.of(draws) for seed, draws in seeds.items()} for series, seeds in found.items()
    }


def estimate(seeds: Seeds) -> Estimate:
    """The mean over seeds; one seed keeps the interval of its record, of several draws the mean of theirs."""
    values = {seed: one.value for seed, one in seeds.items()}
    draws = min(one.draws for one in seeds.values())
    if len(values) > 1:
        return _over_seeds(values, draws)
    (one,) = seeds.values()
    return Estimate(one.value, one.low, one.high, values, one.sd, draws)


def compare(collection: Collection) -> list[Comparison]:
    """Every series against its CLIP in every measure that both have with a seed (and a draw) in common."""
    return list(_compare(collection))


def compare_in(measure: Measure, found: Mapping[Series, Seeds], collection: Collection) -> list[Comparison]:
    """Every series of `found`, which are those of one measure, against its CLIP."""
    comparisons = []
    shown = [one for one in collection.series if one in found]
    for series in shown:
        baseline = baseline_of(series, shown)
        if baseline is None:
            continue
        own, reference = _shared(found[series], found[baseline])
        if own:
            comparisons.append(_comparison(measure, series, baseline, own, reference, collection.outcomes))
    return comparisons


def reference_of(comparisons: Iterable[Comparison]) -> str:
    """What the differences are to: the label of the one CLIP, or CLIP where there are several."""
    labels = {one.baseline.label for one in comparisons}
    return labels.pop() if len(labels) == 1 else "CLIP"


def corrected(comparisons: Iterable[Comparison]) -> list[Comparison]:
    """The comparisons with their p corrected for being shown together (Holm)."""
    comparisons = list(comparisons)
    tested = [one for one in comparisons if one.p is not None]
    new = iter(holm([one.p for one in tested if one.p is not None]))
    return [
        one if one.p is None else replace(one, holm_p=next(new), tests=len(tested)) for one in comparisons
    ]


# a page asks for the verdict and for each kind of table
@kept
def _compare(collection: Collection) -> tuple[Comparison, ...]:
    measures = dict.fromkeys(measure_of(result) for result in collection.results)
    return tuple(
        one
        for measure in measures
        for one in compare_in(measure, by_series(collection.results, measure), collection)
    )


def _shared(own: Seeds, reference: Seeds) -> tuple[Seeds, Seeds]:
    """Both in the seeds, and of each seed the draws, that both have."""
    ours, theirs = {}, {}
    for seed in own:
        if seed in reference:
            draws = own[seed].drawn & reference[seed].drawn
            if draws:
                ours[seed], theirs[seed] = own[seed].only(draws), reference[seed].only(draws)
    return ours, theirs


def _comparison(
    measure: Measure,
    series: Series,
    baseline: Series,
    own: Seeds,
    reference: Seeds,
    outcomes: Mapping[str, ItemOutcomes],
) -> Comparison:
    both = estimate(own), estimate(reference)
    values = {seed: own[seed].value - reference[seed].value for seed in own}
    draws = min(one.draws for one in own.values())
    if len(values) == 1:
        (seed,) = values
        found = paired_difference(own[seed], reference[seed], outcomes)
        sd = _sd_over_draws(own[seed], reference[seed])
        difference = Estimate(found.mean, found.low, found.high, values, sd, draws)
        return Comparison(measure, series, baseline, *both, difference, found.basis, found.p)
    difference = _over_seeds(values, draws)
    if len(values) < ENOUGH_SEEDS:
        return Comparison(measure, series, baseline, *both, difference, "seeds")
    first, second = (
        {number: one.value for number, one in enumerate(seeds[seed] for seed in values)}
        for seeds in (own, reference)
    )
    test = paired_by_seed(first, second)
    return Comparison(measure, series, baseline, *both, difference, "seeds", test.p, test.detectable)


def _sd_over_draws(own: Measured, reference: Measured) -> float | None:
    pairs = zip(own.results, reference.results, strict=True)
    differences = [ours.value - theirs.value for ours, theirs in pairs]
    return statistics.stdev(differences) if len(differences) > 1 else None


def _over_seeds(values: dict[int | None, float], draws: int) -> Estimate:
    """Two seeds: their range. More: the t interval of the mean."""
    numbers = list(values.values())
    summary = over_seeds(numbers)
    if len(numbers) < ENOUGH_SEEDS:
        return Estimate(summary.mean, min(numbers), max(numbers), values, summary.sd, draws)
    return Estimate(summary.mean, summary.low, summary.high, values, summary.sd, draws)

"""Differences of two arms of a study, paired by seed, and how they are written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from diffclip.evaluation.significance import (
    ALPHA,
    SeedTest,
    detectable_difference,
    holm,
    paired_by_seed,
)
from diffclip.report.compare import ENOUGH_SEEDS, Measure, by_series, measure_of
from diffclip.report.metrics import p_text
from diffclip.report.series import Measured
from diffclip.report.study_data import StudyData

NONE = "–"
Values = Mapping[int, float]
"""A number a seed."""


def paired(first: Values, second: Values) -> SeedTest | None:
    """first − second in the seeds that both have, None without any; fewer than three seeds tell a mean alone."""
    shared = sorted(first.keys() & second.keys())
    if not shared:
        return None
    test = paired_by_seed({seed: first[seed] for seed in shared}, {seed: second[seed] for seed in shared})
    if len(shared) >= ENOUGH_SEEDS:
        return test
    return SeedTest(replace(test.difference, low=None, high=None), None, None)


def values_of(
    data: StudyData, fits: Callable[[Measure], bool], arms: Sequence[str]
) -> tuple[Measure, dict[str, dict[int, float]]] | None:
    """The measure among those that fit which most of `arms` have, then most runs, and its values by arm and seed.

    Of what a task drew at random only the draws count that all these runs have. None where no arm has any.
    """
    found: dict[Measure, dict[str, dict[int, Measured]]] = {}
    for arm in arms:
        results = data.measured[arm].results if arm in data.measured else []
        for measure in dict.fromkeys(measure_of(one) for one in results if one.record.value is not None):
            if fits(measure):
                own = by_series(results, measure).values()
                seeds = {seed: one for by_seed in own for seed, one in by_seed.items() if seed is not None}
                found.setdefault(measure, {})[arm] = seeds
    if not found:
        return None
    # runs of one arm may have been measured otherwise, as where a set was missing
    measure = max(found, key=lambda one: (len(found[one]), sum(map(len, found[one].values()))))
    drawn = [one.drawn for seeds in found[measure].values() for one in seeds.values()]
    shared = set.intersection(*drawn) if drawn else set()
    if not shared:
        return None
    return measure, {
        arm: {seed: one.only(shared).value for seed, one in seeds.items()}
        for arm, seeds in found[measure].items()
    }


def corrected(tests: Sequence[SeedTest | None]) -> list[float | None]:
    """The p of each test, corrected for being shown together (Holm); None where nothing was tested."""
    ps = [test.p if test else None for test in tests]
    new = iter(holm([p for p in ps if p is not None]))
    return [None if p is None else next(new) for p in ps]


def is_real(p: float | None) -> bool:
    """Whether a difference with this p is more than luck."""
    return p is not None and p < ALPHA


def detectable_in(tests: Sequence[SeedTest | None]) -> list[float | None]:
    """Of each test the smallest true difference that it would have found in 80 % of all cases at 5 % ÷ the number of
    tests, the strictest step of Holm's correction; None where nothing was tested.
    """
    spreads = [(one.difference.sd, one.difference.n) if one and one.p is not None else None for one in tests]
    known = sum(one is not None for one in spreads)
    return [
        detectable_difference(one[0], one[1], ALPHA / known) if one and one[0] is not None else None
        for one in spreads
    ]


def detectable_text(tests: Sequence[SeedTest | None]) -> str:
    """ "1.0 to 20.7 points"; empty where nothing was tested."""
    known = sorted(f for f in detectable_in(tests) if f is not None)
    if not known:
        return ""
    low, high = f"{100 * known[0]:.1f}", f"{100 * known[-1]:.1f}"
    return f"{low if low == high else f'{low} to {high}'} points"


def signed(value: float, places: int = 1, factor: float = 100) -> str:
    """A difference with its sign, in points of a hundred: "−1.4"."""
    text = f"{factor * value:+.{places}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def difference_text(test: SeedTest | None, places: int = 1, factor: float = 100) -> str:
    """A mean difference with its 95 % interval: "−1.4 [−2.4, −0.5]"."""
    if test is None:
        return NONE
    mean, low, high = test.difference.mean, test.difference.low, test.difference.high
    text = signed(mean, places, factor)
    if low is None or high is None:
        return text
    return f"{text} [{signed(low, places, factor)}, {signed(high, places, factor)}]"


def p_cell(p: float | None, corrected_p: float | None = None) -> str:
    """A p for a column headed p: "0.02", "< 0.001", or with the corrected one "0.02 (0.13)"."""
    if p is None:
        return NONE
    text = p_text(p).removeprefix("p ")
    return text if corrected_p is None else f"{text} ({p_cell(corrected_p)})"


def enumerated(items: Sequence[str]) -> str:
    """ "a, b and c"."""
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""

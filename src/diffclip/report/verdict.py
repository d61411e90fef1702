"""What the numbers say, in plain words made from the numbers alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffclip.evaluation.focus_names import is_share
from diffclip.evaluation.significance import ALPHA
from diffclip.report.compare import ENOUGH_SEEDS, Comparison, Measure, compare, corrected
from diffclip.report.metrics import (
    amount,
    chance_of,
    correction,
    headline_measures,
    level_name,
    level_text,
    measure_name,
    place_of,
    tested_points,
)
from diffclip.report.series import Collection, Series


@dataclass(frozen=True)
class Verdict:
    """Which model is better at what, and how far that can be trusted.

    `headline` is a sentence; with several models it ends in a colon and `lines` has one line a model.
    `comparisons` are those that it rests on, their p corrected for one another.
    """

    headline: str
    lines: list[str]
    caveat: str
    comparisons: list[Comparison]

    @property
    def measures(self) -> list[Measure]:
        return list(dict.fromkeys(one.measure for one in self.comparisons))


def judge(collection: Collection) -> Verdict | None:
    """The verdict on the headline measures; None where nothing was evaluated."""
    if not collection.results:
        return None
    comparisons = compare(collection)
    if not comparisons:
        return Verdict(
            "There is no pair to compare.",
            [],
            "A comparison needs a CLIP and another model of its size, measured on the same set the same way.",
            [],
        )
    chosen = headline_measures(list(dict.fromkeys(one.measure for one in comparisons)))
    told = corrected(one for measure in chosen for one in comparisons if one.measure == measure)
    if not told:
        return Verdict("What was measured describes the models, and is neither better nor worse.", [], "", [])
    models: dict[tuple[Series, Series], list[Comparison]] = {}
    for one in told:
        models.setdefault((one.series, one.baseline), []).append(one)
    places = {place_of(one.measure) for one in told}
    where = f" on {place}" if len(places) == 1 and (place := next(iter(places))) else ""
    averaged = ", tasks averaged over their sets" if None in places else ""
    fewest, most = min(one.difference.n for one in told), max(one.difference.n for one in told)
    if most == 1:
        seeds = "In one training run each"
    else:
        seeds = f"Over {fewest if fewest == most else f'{fewest} to {most}'} training seeds"
    if len(models) == 1:
        ((series, baseline),) = models
        headline, lines = f"{seeds}{where}{averaged}, {_sentence(series, baseline, told, where)}.", []
    else:
        headline = f"{seeds}{where}{averaged}:"
        pairs = sorted(models, key=lambda pair: collection.series.index(pair[0]))
        lines = [f"{_sentence(*pair, models[pair], where)}." for pair in pairs]
    return Verdict(headline, lines, _caveat(fewest, most, told), told)


def spelled_out(one: Comparison, collection: Collection) -> str:
    """One comparison with all its numbers, as a sentence."""
    chance = chance_of(one.measure, collection.results)
    level = f" ({level_name(one.measure)} {level_text(one.measure, chance)})" if chance is not None else ""
    name, place = measure_name(one.measure), place_of(one.measure)
    where = f" on {place}" if place else ", averaged over its sets"
    metric = one.measure.metric
    own = f"{one.series.label} {amount(metric, one.own.mean)}"
    reference = f"{one.baseline.label} {amount(metric, one.reference.mean)}"
    return (
        f"{name[0].upper()}{name[1:]}{where}: {own}, {reference}{level}; "
        f"difference{' in points' * is_share(metric)} {tested_points(one)}, {basis(one)}."
    )


def basis(one: Comparison) -> str:
    """What the bracket of a difference is."""
    n = one.difference.n
    if one.difference.low is None:
        return "without an interval"
    if n == 1:
        over = "over the same test items" if one.basis == "items" else "from the test set"
        return f"95 % interval {over}, one training run each"
    return "range of two seeds" if n < ENOUGH_SEEDS else f"95 % interval over {n} paired seeds"


def _sentence(series: Series, baseline: Series, comparisons: Sequence[Comparison], where: str) -> str:
    """Which of the two is better at what; sets are named unless `where` has done so."""

    def names(outcome: str) -> str:
        by_place: dict[str | None, list[str]] = {}
        for one in comparisons:
            if one.outcome == outcome:
                place = None if where else place_of(one.measure)
                by_place.setdefault(place, []).append(measure_name(one.measure))
        return ", and at ".join(
            f"{_and(metrics)} on {place}" if place else _and(metrics) for place, metrics in by_place.items()
        )

    told = {outcome: names(outcome) for outcome in ("higher", "lower", "unclear")}
    parts = [f"better than {baseline.label} at {told['higher']}"] if told["higher"] else []
    parts += [f"worse than {baseline.label} at {told['lower']}"] if told["lower"] else []
    if not parts:
        return f"{series.label} and {baseline.label} cannot be told apart at {told['unclear']}"
    rest = f"; no difference can be told at {told['unclear']}" if told["unclear"] else ""
    return f"{series.label} is {' and '.join(parts)}{rest}"


def _and(items: list[str]) -> str:
    return " and ".join(filter(None, [", ".join(items[:-1]), items[-1]])) if items else ""


def _suggested(told: Sequence[Comparison]) -> str:
    """What would pass as a single comparison, and does not among these; empty if there is none."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in told:
        if one.p is not None and one.p < ALPHA and one.outcome == "unclear":
            way = "higher" if one.difference.mean > 0 else "lower"
            found.setdefault((one.series.label, way), []).append(measure_name(one.measure))
    if not found:
        return ""
    named = "; ".join(f"{label} {way} at {_and(names)}" for (label, way), names in found.items())
    return (
        f"Each for itself, without the correction, these would pass: {named}. That is a hint, not a finding."
    )


def _caveat(fewest: int, most: int, told: Sequence[Comparison]) -> str:
    many = "".join(f" {text}" for text in (correction(told), _suggested(told)) if text)
    if fewest < ENOUGH_SEEDS and fewest < most:
        return (
            "Not everything has equally many training seeds: with one, the interval covers the test set alone, and two "
            f"are too few to tell a difference from luck.{many}"
        )
    if fewest == 2:
        return (
            "Two training seeds are too few to tell a difference between the methods from luck; "
            f"the differences are shown all the same.{many}"
        )
    if fewest > 1:
        return (
            "Differences are paired by seed, and their 95 % intervals cover the luck of training "
            f"over {fewest} seeds.{many}"
        )
    return (
        "One training seed a model: this compares these trained models on these test sets. "
        f"Whether the method or the luck of training made a difference, only more seeds can tell.{many}"
    )

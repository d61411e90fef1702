"""The paper's Appendix C against the numbers: is A1 on the object, and is A2 diffuse, as its pictures suggest?

Told by the paired differences of the two maps, `A1_minus_A2_inside`, `_entropy` and `_top10`, each the mean over
pictures, layers and heads: of one training run with their interval over the test pictures, from three runs on with that
over seeds. Two seeds never tell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from diffclip.report.compare import ENOUGH_SEEDS, Estimate, Measure, by_series, estimate
from diffclip.report.focus_data import by_layer, focus_sets
from diffclip.report.metrics import amount, place_of, points
from diffclip.report.series import Collection, Series

CLAIM = (
    "Of the two maps of a differential layer, the paper's Appendix C says that A1 highlights the most salient features "
    "and that A2 captures more diffuse, high-entropy patterns, often of the background."
)

Answer = Literal["yes", "no", "unclear"]

_ANSWERS: dict[Answer, str] = {
    "yes": "yes",
    "no": "no, the other way round",
    "unclear": "that cannot be told",
}


@dataclass(frozen=True)
class Finding:
    """What the maps of one differential model say on one set: whether A1 is more on the object than A2, and whether A2
    is more diffuse than A1; None where that was not measured. `text` has the numbers."""

    series: Series
    place: str
    salient: Answer | None
    diffuse: Answer | None
    text: str


def appendix_c(collection: Collection) -> list[Finding]:
    """A finding for each set and each differential model whose maps were looked at on it."""
    found = [
        _finding(collection, where, series)
        for where in focus_sets(collection)
        for series in collection.series
    ]
    return [one for one in found if one is not None]


def _finding(collection: Collection, where: Measure, series: Series) -> Finding | None:
    inside, entropy, top10 = (
        _mean(collection, where, f"A1_minus_A2_{name}", series) for name in ("inside", "entropy", "top10")
    )
    known = inside or entropy
    if known is None:
        return None
    place = place_of(where) or where.dataset
    parts = [f"{series.label} on {place}, {_basis(known)}."]
    salient = diffuse = None
    if inside is not None:
        salient = _positive(inside)
        both = _both(collection, where, "inside", series, "of its weight on patches")
        parts.append(
            f"Is A1 more on the object than A2? {_sentence(salient)}: {both}A1 − A2 {points(inside)} points"
            f"{_layers(collection, where, 'A1_minus_A2_inside', series, _positive)}."
        )
    if entropy is not None:
        by_entropy = _negative(entropy)
        by_top10 = by_entropy if top10 is None else _positive(top10)
        disagree = {by_entropy, by_top10} == {"yes", "no"}
        diffuse = "unclear" if disagree else by_entropy
        both = _both(collection, where, "entropy", series, "of the highest entropy")
        text = f"Is A2 more diffuse than A1? {_sentence(diffuse)}: {both}A1 − A2 {points(entropy)} points"
        if top10 is not None:
            text += f"; on its ten strongest patches {points(top10)} points"
        text += ", which says the opposite" * disagree
        parts.append(f"{text}{_layers(collection, where, 'A1_minus_A2_entropy', series, _negative)}.")
    return Finding(series, place, salient, diffuse, " ".join(parts))


def _mean(collection: Collection, where: Measure, metric: str, series: Series) -> Estimate | None:
    seeds = by_series(collection.results, where._replace(metric=metric)).get(series)
    return estimate(seeds) if seeds else None


def _positive(difference: Estimate) -> Answer:
    """Whether a difference is above 0, as far as its interval can tell."""
    if difference.low is None or difference.high is None or difference.n == ENOUGH_SEEDS - 1:
        return "unclear"
    return "yes" if difference.low > 0 else "no" if difference.high < 0 else "unclear"


def _negative(difference: Estimate) -> Answer:
    answers: dict[Answer, Answer] = {"yes": "no", "no": "yes", "unclear": "unclear"}
    return answers[_positive(difference)]


def _layers(
    collection: Collection,
    where: Measure,
    metric: str,
    series: Series,
    answer: Callable[[Estimate], Answer],
) -> str:
    """In which layers the answer is yes, and in which no; empty where layers were not looked at one by one."""
    told: dict[Answer, list[str]] = {"yes": [], "no": [], "unclear": []}
    for layer, found in by_layer(collection, where._replace(metric=metric)).items():
        if series in found:
            told[answer(estimate(found[series]))].append(str(layer))
    parts = [f"{name} in {', '.join(own)}" for name, own in told.items() if own and name != "unclear"]
    return f"; by layer: {'; '.join(parts)}" if parts else ""


def _both(collection: Collection, where: Measure, name: str, series: Series, of: str) -> str:
    """The values of the two maps themselves, where they were measured."""
    values = [_mean(collection, where, f"{map_}_{name}", series) for map_ in ("A1", "A2")]
    told = [amount(name, one.mean) for one in values if one is not None]
    return f"A1 {told[0]} {of}, A2 {told[1]}; " if len(told) == len(values) else ""


def _basis(one: Estimate) -> str:
    if one.n == 1:
        return "one training run (brackets: 95 % interval over its pictures)"
    if one.n < ENOUGH_SEEDS:
        return "two training seeds (brackets: their range, too few to tell)"
    return f"{one.n} training seeds (brackets: 95 % interval over them)"


def _sentence(answer: Answer) -> str:
    text = _ANSWERS[answer]
    return text[0].upper() + text[1:]

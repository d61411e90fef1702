"""The paper's Appendix C against the numbers: is A1 on the object, and is A2 diffuse, as its pictures suggest?

Told by the paired differences of the two maps, `A1_minus_A2_inside`, `_entropy` and `_top10`, each the mean over
pictures, layers and heads. Of one training run they are tested over the test pictures, from three runs on over seeds;
two seeds never tell. Answers are corrected for their number (Holm), so that intervals, which are not, may leave out 0
where nothing can be told. A2 is more diffuse where its entropy is higher and its ten strongest patches have less.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from diffclip.evaluation.significance import ALPHA, holm, paired_by_seed
from diffclip.report.compare import ENOUGH_SEEDS, Estimate, Measure, Seeds, by_series, estimate
from diffclip.report.focus_data import by_layer, focus_sets
from diffclip.report.metrics import amount, place_of, points
from diffclip.report.paired import p_of_no_mean
from diffclip.report.series import Collection, Series

CLAIM = (
    "Of the two maps of a differential layer, the paper's Appendix C says that A1 highlights the most salient features "
    "and that A2 captures more diffuse, high-entropy patterns, often of the background."
)

Answer = Literal["yes", "no", "unclear"]

_ANSWERS: dict[Answer, str] = {
    "yes": "Yes",
    "no": "No, the other way round",
    "unclear": "That cannot be told",
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


@dataclass(frozen=True)
class _Difference:
    """A1 − A2 with the p of no difference, None where nothing can tell."""

    estimate: Estimate
    p: float | None


_Read = Callable[[str], _Difference | None]
"""The difference in a measure, of all layers or of one."""


@dataclass(frozen=True)
class _Test:
    """The answer that stands if `p`, corrected for the tests told with it, is below 5 %."""

    answer: Answer
    p: float | None


def appendix_c(collection: Collection) -> list[Finding]:
    """A finding for each set and each differential model whose maps were looked at on it; their answers are corrected
    for the number of all of them, and those of layers for the number of layers."""
    asked: list[tuple[Measure, Series, _Read]] = []
    tests: list[_Test | None] = []
    for where in focus_sets(collection):
        for series in collection.series:
            read = _reader(collection, where, series)
            own = _salient(read), _diffuse(read)
            if any(own):
                asked.append((where, series, read))
                tests += own
    answers, count = _answers(tests)
    return [
        _finding(collection, *one, salient, diffuse, count)
        for one, salient, diffuse in zip(asked, answers[::2], answers[1::2], strict=True)
    ]


def _finding(
    collection: Collection,
    where: Measure,
    series: Series,
    read: _Read,
    salient: Answer | None,
    diffuse: Answer | None,
    tests: int,
) -> Finding:
    place = place_of(where) or where.dataset
    inside, entropy, top10 = (read(name) for name in ("inside", "entropy", "top10"))
    basis = next(_basis(one.estimate) for one in (inside, entropy) if one)
    many = f"; answers, not brackets, are corrected for {tests} tests" if tests > 1 else ""
    parts = [f"{series.label} on {place}, {basis}{many}."]
    if inside and salient:
        both = _both(collection, where, "inside", series, "of its weight on patches")
        parts.append(
            f"Is A1 more on the object than A2? {_ANSWERS[salient]}: {both}A1 − A2 {points(inside.estimate)} points"
            f"{_layers(collection, where, 'inside', series, _salient)}."
        )
    if entropy and diffuse:
        both = _both(collection, where, "entropy", series, "of the highest entropy")
        alone = "" if top10 or diffuse == "unclear" else ", by entropy alone"
        text = f"Is A2 more diffuse than A1? {_ANSWERS[diffuse]}{alone}: {both}"
        text += f"A1 − A2 {points(entropy.estimate)} points"
        if top10:
            text += f"; on its ten strongest patches {points(top10.estimate)} points"
            opposite = entropy.estimate.mean * top10.estimate.mean > 0
            text += ", which points the other way" * opposite
        parts.append(f"{text}{_layers(collection, where, 'entropy', series, _diffuse)}.")
    return Finding(series, place, salient, diffuse, " ".join(parts))


def _reader(collection: Collection, where: Measure, series: Series, layer: int | None = None) -> _Read:
    def read(name: str) -> _Difference | None:
        measure = where._replace(metric=f"A1_minus_A2_{name}")
        found = (
            by_series(collection.results, measure)
            if layer is None
            else by_layer(collection, measure).get(layer, {})
        )
        return _difference(collection, found[series]) if series in found else None

    return read


def _difference(collection: Collection, seeds: Seeds) -> _Difference:
    one = estimate(seeds)
    if one.n == 1:
        (own,) = seeds.values()
        return _Difference(one, p_of_no_mean(own, collection.outcomes))
    if one.n < ENOUGH_SEEDS:
        return _Difference(one, None)
    values = dict(enumerate(one.values.values()))
    return _Difference(one, paired_by_seed(values, dict.fromkeys(values, 0.0)).p)


def _salient(read: _Read) -> _Test | None:
    inside = read("inside")
    if inside is None:
        return None
    return _Test("yes" if inside.estimate.mean > 0 else "no", inside.p)


def _diffuse(read: _Read) -> _Test | None:
    """Entropy and the ten strongest patches must both say so: the larger p of the two."""
    entropy, top10 = read("entropy"), read("top10")
    if entropy is None:
        return None
    answer: Answer = "yes" if entropy.estimate.mean < 0 else "no"
    if top10 is None:
        return _Test(answer, entropy.p)
    if entropy.p is None or top10.p is None:
        return _Test("unclear", None)
    agree = entropy.estimate.mean * top10.estimate.mean < 0
    return _Test(answer, max(entropy.p, top10.p) if agree else 1.0)


def _answers(tests: Sequence[_Test | None]) -> tuple[list[Answer | None], int]:
    """What stands of the answers when they are told together, None where nothing was asked; the number of tests."""
    corrected = holm([one.p for one in tests if one and one.p is not None])
    rest = iter(corrected)
    told: list[Answer | None] = []
    for one in tests:
        stands = one is not None and one.p is not None and next(rest) < ALPHA
        told.append(None if one is None else one.answer if stands else "unclear")
    return told, len(corrected)


def _layers(
    collection: Collection,
    where: Measure,
    name: str,
    series: Series,
    test: Callable[[_Read], _Test | None],
) -> str:
    """In which layers the answer is yes, and in which no; empty where layers cannot be told one by one."""
    layers = list(by_layer(collection, where._replace(metric=f"A1_minus_A2_{name}")))
    answers, count = _answers([test(_reader(collection, where, series, layer)) for layer in layers])
    if not count:
        return ""
    wanted: tuple[Answer, ...] = ("yes", "no")
    lists = {
        one: [str(layer) for layer, own in zip(layers, answers, strict=True) if own == one] for one in wanted
    }
    told = "; ".join(f"{one} in {', '.join(own)}" for one, own in lists.items() if own)
    many = f" (corrected for {count})" if count > 1 else ""
    return f"; by layer{many}: {told or 'none tells'}"


def _mean(collection: Collection, where: Measure, metric: str, series: Series) -> Estimate | None:
    seeds = by_series(collection.results, where._replace(metric=metric)).get(series)
    return estimate(seeds) if seeds else None


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

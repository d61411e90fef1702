"""What a reader must know of a table: models, sets, init, seeds, protocol, and what bold means."""

from __future__ import annotations

from collections.abc import Sequence

from diffclip.evaluation.averages import DERIVED
from diffclip.evaluation.protocol import method_of
from diffclip.report.compare import Comparison, Estimate, Measure, by_series, measure_of, reference_of
from diffclip.report.series import Collection, Series, inits_of, usual_init
from diffclip.report.sets import sets_of
from diffclip.report.told import correction_of
from diffclip.report.verdict import basis


def notes_on(
    collection: Collection, measures: Sequence[Measure], comparisons: Sequence[Comparison]
) -> list[str]:
    """Sentences on the results of `measures`."""
    shown = [
        series
        for series in collection.series
        if any(series in by_series(collection.results, measure) for measure in measures)
    ]
    notes = [_models(collection, shown), _data(measures), _seeds(collection, measures, shown)]
    protocols = dict.fromkeys(
        method_of(record.protocol)
        for one in collection.results
        if measure_of(one) in measures
        for record in ([part.record for part in one.parts] or [one.record])
    )
    methods = dict.fromkeys(protocol.partition(";")[0] for protocol in protocols)
    if len(protocols) == 1:
        notes.append(f"Protocol: {next(iter(protocols))}.")
    elif methods:
        notes.append(f"Protocols: {', '.join(methods)}; each in full with the table of its set.")
    own = [one for one in comparisons if one.measure in measures]
    if own:
        bases = " or ".join(dict.fromkeys(basis(one) for one in own))
        notes.append(
            f"Differences are to {reference_of(own)}, in points ({bases}), in bold where they are more than luck. "
            f"{correction_of(collection, own)}".strip()
        )
    return [note for note in notes if note]


def repeated_over(estimates: Sequence[Estimate]) -> str:
    """What the standard deviations of these are over: "3 training seeds", empty where there is none."""
    over = dict.fromkeys(
        f"{one.n} training seeds" if one.n > 1 else f"{one.draws} draws of one trained model"
        for one in estimates
        if one.sd is not None
    )
    return " or ".join(over)


def _models(collection: Collection, shown: Sequence[Series]) -> str:
    inits = inits_of(shown)
    size = f" ({collection.architecture})" if collection.architecture else ""
    init = ""
    if inits:
        unless = " unless a name says otherwise" if len(set(inits)) > 1 else ""
        init = f"; init {usual_init(inits)}{unless}"
    return f"Models: {', '.join(series.label for series in shown)}{size}{init}." if shown else ""


def _data(measures: Sequence[Measure]) -> str:
    """The sets by split: "Sets: a, b (test); c (val)."."""
    splits: dict[str, dict[str, None]] = {}
    for measure in measures:
        derived = measure.task in DERIVED
        for dataset, split in sets_of(measure) if derived else [(measure.dataset, measure.split)]:
            splits.setdefault(split, {})[dataset] = None
    parts = [f"{', '.join(sets)} ({split} split)" for split, sets in splits.items()]
    return f"Sets: {'; '.join(parts)}." if parts else ""


def _seeds(collection: Collection, measures: Sequence[Measure], shown: Sequence[Series]) -> str:
    own = [one for one in collection.results if measure_of(one) in measures and one.series in shown]
    seeds = {
        series: sorted({one.seed for one in own if one.series == series and one.seed is not None})
        for series in shown
    }
    unique = {tuple(numbers) for numbers in seeds.values()}
    if not any(unique):
        return "Training seeds: unknown."
    if len(unique) == 1:
        text = _numbers(unique.pop())
    else:
        text = "; ".join(f"{series.label} {_numbers(numbers)}" for series, numbers in seeds.items())
    return f"Training seeds: {text}."


def _numbers(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds)) or "unknown"

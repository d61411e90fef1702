"""The paper's Figure 3: a set, its shifts and their mean, with the difference to CLIP above each bar."""

from __future__ import annotations

from diffclip.data.shifts import base_of
from diffclip.evaluation.averages import DROP, MEAN_OF_ALL, MEAN_OF_SHIFTS, OUT_OF_DOMAIN, PANELS
from diffclip.report.charts import Chart, Panel
from diffclip.report.compare import Comparison, Measure
from diffclip.report.grouped import Group, draw_groups, legend_of, reading, shown_in
from diffclip.report.series import Collection
from diffclip.report.sets import set_name, sets_of, widest
from diffclip.report.six_tasks import is_broad, six_task_measures
from diffclip.report.style import WIDTH
from diffclip.report.told import comparisons_of


def is_corrupted(dataset: str) -> bool:
    """Whether a set is another with its pictures corrupted."""
    return "+" in dataset


def shift_families(collection: Collection) -> list[tuple[str, bool, list[str]]]:
    """Each base with its shifts in their order, those of other pictures and corrupted ones apart."""
    accuracies = dict.fromkeys(
        one.record.dataset
        for one in collection.results
        if one.record.task == "zero-shot" and one.record.metric == "acc1" and one.record.value is not None
    )
    families: dict[tuple[str, bool], list[str]] = {}
    for dataset in accuracies:
        base = base_of(dataset)
        if base is not None and base in accuracies:
            families.setdefault((base, is_corrupted(dataset)), []).append(dataset)
    order = sorted(families, key=lambda family: family[1])
    return [(base, corrupted, families[base, corrupted]) for base, corrupted in order]


def accuracy_on(collection: Collection, dataset: str) -> Measure | None:
    """The measure of zero-shot accuracy on a set that most models have; the panel of six tasks that is just it."""
    found = widest(
        collection,
        lambda one: (one.task, one.dataset, one.metric) == ("zero-shot", dataset, "acc1"),
    )
    panel = six_task_measures(collection).get("zero-shot") if is_broad(collection) else None
    if found and panel and sets_of(panel) == [(dataset, found[0].split)]:
        return panel
    return found[0] if found else None


def derived(collection: Collection, base: str, corrupted: bool, metric: str) -> Measure | None:
    """The measure of a derived number of a family (a mean, a drop) that most models have."""
    found = widest(
        collection,
        lambda one: (
            (one.task, one.dataset, one.metric) == (OUT_OF_DOMAIN, base, metric)
            and is_corrupted(one.protocol.partition(";")[0]) is corrupted
        ),
    )
    if metric == MEAN_OF_SHIFTS and found and is_broad(collection):
        # the average over six tasks that is the same number has its p in the headline
        panel = six_task_measures(collection).get(PANELS[-1])
        if panel and set(sets_of(panel)) == set(sets_of(found[0])):
            return panel
    return found[0] if found else None


def family_comparisons(
    collection: Collection, base: str, corrupted: bool, shifts: list[str]
) -> list[Comparison]:
    """The comparisons on a base, its shifts and what is derived from them, corrected for their number."""
    measures = [accuracy_on(collection, one) for one in (base, *shifts)]
    measures += [
        derived(collection, base, corrupted, metric) for metric in (MEAN_OF_SHIFTS, MEAN_OF_ALL, DROP)
    ]
    return comparisons_of(collection, measures)


def out_of_domain_chart(collection: Collection) -> Chart | None:
    """A panel for each set with shifts, in the end their mean; None where no set has any."""
    panels, every, told = [], [], []
    for base, corrupted, shifts in shift_families(collection):
        comparisons = family_comparisons(collection, base, corrupted, shifts)
        told += comparisons
        for title, part in _parts(base, corrupted, shifts):
            measures = [(set_name(one), accuracy_on(collection, one)) for one in (base, *part)]
            if part == shifts:
                measures.append(("mean of shifts", derived(collection, base, corrupted, MEAN_OF_SHIFTS)))
            groups = [Group(label, measure) for label, measure in measures if measure is not None]
            every += groups
            shown = shown_in(collection, groups)
            draw = draw_groups(collection, groups, comparisons, shown, WIDTH)
            panels.append(Panel(title, draw, height=2.9))
    if not panels:
        return None
    return Chart(
        name="out_of_domain",
        title="Out of domain",
        caption=f"Zero-shot accuracy, no training on these sets. {reading(collection, every, told)}",
        panels=panels,
        legend=legend_of(collection, every),
        dense=True,
    )


def _parts(base: str, corrupted: bool, shifts: list[str]) -> list[tuple[str, list[str]]]:
    """The panels of one family: one, unless a corruption has several severities."""
    name = set_name(base)
    if not corrupted:
        return [(f"{name} and its shifts", shifts)]
    kinds: dict[str, list[str]] = {}
    for shift in shifts:
        kinds.setdefault(set_name(shift).partition(" ")[0], []).append(shift)
    if all(len(own) == 1 for own in kinds.values()):
        return [(f"{name}, pictures corrupted", shifts)]
    return [(f"{name} and {kind}", own) for kind, own in kinds.items()]

"""Averages over sets, as the paper's Figures 1, 3 and 5 show them: six tasks, and the shifts of a set.

They are records like any other, derived from the records of the sets. Sets are independent samples, so the halves of
their 95 % intervals are combined as standard errors are; a corrupted set shares its pictures with its base, which
makes the interval of `drop` rather too wide there. A set that a model was not measured on makes its average another
measure (the protocol names the sets), which is compared with nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from diffclip.data.shifts import base_of
from diffclip.evaluation.linear_probe import tuned_per_class
from diffclip.evaluation.protocol import draw_of, drawn, method_of, with_particulars
from diffclip.evaluation.records import Record

SIX_TASKS, OUT_OF_DOMAIN = "six-tasks", "out-of-domain"
PANELS = ("linear probing", "few-shot", "image retrieval", "text retrieval", "zero-shot", "out of domain")
"""What is averaged as the panels of the paper's Figure 1, in its order."""
AVERAGE, MEAN_OF_SHIFTS, MEAN_OF_ALL, DROP = "average", "mean_of_shifts", "mean_of_all", "drop"

_IMAGENET = "imagenet1k"


def with_averages(records: Iterable[Record]) -> list[Record]:
    """The records, and the averages that follow from them in place of any that were there."""
    measured = [record for record in records if record.task not in (SIX_TASKS, OUT_OF_DOMAIN)]
    return measured + averages(measured)


def averages(records: Sequence[Record]) -> list[Record]:
    """The averages of each model and training seed; where a task was drawn several times, one a draw."""
    found = []
    models: dict[tuple[str, str, int | None], list[Record]] = {}
    for record in records:
        if record.value is not None:
            models.setdefault((record.model, record.weights, record.seed), []).append(record)
    for own in models.values():
        found += _six_tasks(own)
        found += _out_of_domain(own)
    return found


def _six_tasks(records: Sequence[Record]) -> list[Record]:
    zero_shot = [one for one in records if one.task == "zero-shot" and base_of(one.dataset) is None]
    on_imagenet = [one for one in zero_shot if one.dataset == _IMAGENET]
    chosen: dict[str, tuple[Callable[[Record], bool], Sequence[Record]]] = {
        "linear probing": (_headline_of_probe, [one for one in records if one.task == "linear-probe"]),
        "few-shot": (_is("acc1"), [one for one in records if one.task == "few-shot"]),
        "image retrieval": (_is("image_retrieval_recall@5"), _plain_retrieval(records)),
        "text retrieval": (_is("text_retrieval_recall@5"), _plain_retrieval(records)),
        "zero-shot": (_is("acc1"), on_imagenet or zero_shot),
    }
    found = []
    for panel, (fits, own) in chosen.items():
        for draw in sorted(
            {draw_of(one.protocol) for one in own}, key=lambda draw: -1 if draw is None else draw
        ):
            parts = [one for one in own if fits(one) and draw_of(one.protocol) == draw]
            if parts:
                found.append(_mean(parts, SIX_TASKS, panel, AVERAGE, draw))
    for base, shifts in _shifts(records):
        # the paper's panel is about one base; corrupted sets stand in where no set of another kind is shifted
        found.append(_mean(shifts, SIX_TASKS, "out of domain", AVERAGE, None))
        del base
        break
    return found


def _out_of_domain(records: Sequence[Record]) -> list[Record]:
    found = []
    for base, shifts in _shifts(records):
        found.append(_mean(shifts, OUT_OF_DOMAIN, base.dataset, MEAN_OF_SHIFTS, None))
        found.append(_mean([base, *shifts], OUT_OF_DOMAIN, base.dataset, MEAN_OF_ALL, None))
        found.append(_drop(base, found[-2]))
    return found


def _shifts(records: Sequence[Record]) -> list[tuple[Record, list[Record]]]:
    """Each base with its shifts, zero-shot: real shifts first, then corrupted sets, in the order of the records."""
    accuracies = [one for one in records if one.task == "zero-shot" and one.metric == "acc1"]
    bases = {one.dataset: one for one in accuracies if base_of(one.dataset) is None}
    groups = []
    for corrupted in (False, True):
        for name, base in bases.items():
            own = [one for one in accuracies if base_of(one.dataset) == name]
            own = [one for one in own if ("+" in one.dataset) is corrupted]
            if own:
                groups.append((base, own))
    return groups


def _plain_retrieval(records: Sequence[Record]) -> list[Record]:
    return [one for one in records if one.task == "retrieval" and base_of(one.dataset) is None]


def _headline_of_probe(record: Record) -> bool:
    return record.metric == ("mean_per_class_recall" if tuned_per_class(record.dataset) else "acc1")


def _is(metric: str) -> Callable[[Record], bool]:
    return lambda record: record.metric == metric


def _mean(parts: Sequence[Record], task: str, dataset: str, metric: str, draw: int | None) -> Record:
    values = [one.value or 0.0 for one in parts]
    mean = sum(values) / len(parts)
    down = _combined(
        [value - one.low for value, one in zip(values, parts, strict=True) if one.low is not None]
    )
    up = _combined(
        [one.high - value for value, one in zip(values, parts, strict=True) if one.high is not None]
    )
    whole = all(one.low is not None and one.high is not None for one in parts)
    return parts[0].model_copy(
        update={
            "task": task,
            "dataset": dataset,
            "split": "test",
            "metric": metric,
            "value": mean,
            "count": sum(one.count for one in parts),
            "low": mean - down / len(parts) if whole else None,
            "high": mean + up / len(parts) if whole else None,
            "protocol": _protocol(parts, draw),
        }
    )


def _drop(base: Record, shifts: Record) -> Record:
    value = (base.value or 0.0) - (shifts.value or 0.0)
    low = high = None
    if base.low is not None and base.high is not None and shifts.low is not None and shifts.high is not None:
        low = value - _combined([(base.value or 0.0) - base.low, shifts.high - (shifts.value or 0.0)])
        high = value + _combined([base.high - (base.value or 0.0), (shifts.value or 0.0) - shifts.low])
    return shifts.model_copy(
        update={
            "metric": DROP,
            "value": value,
            "count": base.count + shifts.count,
            "low": low,
            "high": high,
            "protocol": f"{base.metric} on {base.dataset} ({base.split}) minus the {shifts.protocol}",
        }
    )


def _combined(halves: Sequence[float]) -> float:
    return math.hypot(*halves)


def _protocol(parts: Sequence[Record], draw: int | None) -> str:
    sets: dict[str, list[str]] = {}
    for one in parts:
        sets.setdefault(one.metric, []).append(f"{one.dataset} ({one.split})")
    named = ", and of ".join(f"{metric} on {', '.join(names)}" for metric, names in sets.items())
    methods = {method_of(one.protocol).partition(";")[0] for one in parts}
    method = (
        f"mean of {named}; {', '.join(sorted(methods))} as measured on each; intervals of the sets combined"
    )
    return method if draw is None else with_particulars(method, drawn(draw))

"""Averages over sets, as the paper's Figures 1, 3 and 5 show them: six tasks, and the shifts of a set.

They are records like any other, derived from the records of the sets. Sets of different pictures are independent
samples, so the halves of their 95 % intervals are combined as standard errors are; sets of the same pictures (corrupted
copies, the scenes by shape and by colour) have theirs added, which is the widest that they can come to. A set that a
model was not measured on, or was measured on otherwise, makes its average another measure (the protocol names the sets
and ends in a digest of how each was measured), which is compared with nothing else.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from diffclip.data import shifts
from diffclip.data.shifts import base_of
from diffclip.evaluation.linear_probe import headline_metric
from diffclip.evaluation.protocol import draw_of, drawn, method_of, with_particulars
from diffclip.evaluation.records import Record

SIX_TASKS, OUT_OF_DOMAIN = DERIVED = "six-tasks", "out-of-domain"
PANELS = ("linear probing", "few-shot", "image retrieval", "text retrieval", "zero-shot", "out of domain")
"""What is averaged as the panels of the paper's Figure 1, in its order."""
AVERAGE, MEAN_OF_SHIFTS, MEAN_OF_ALL, DROP = "average", "mean_of_shifts", "mean_of_all", "drop"

_IMAGENET = "imagenet1k"


@dataclass(frozen=True)
class Part:
    """A record that an average is made of, and the weight it has in it: 1/n of a mean, less than 0 in a drop."""

    weight: float
    record: Record


@dataclass(frozen=True)
class Average:
    """A derived record and what it is made of, in an order that is the same for every model."""

    record: Record
    parts: tuple[Part, ...]


def is_derived(record: Record) -> bool:
    """Whether a record is an average of others."""
    return record.task in DERIVED


def with_averages(records: Iterable[Record]) -> list[Record]:
    """The records, and the averages that follow from them in place of any that were there."""
    measured = [record for record in records if not is_derived(record)]
    models: dict[tuple[str, str, int | None], list[Record]] = {}
    for record in measured:
        models.setdefault((record.model, record.weights, record.seed), []).append(record)
    return measured + [one.record for own in models.values() for one in averages_of(own)]


def averages_of(records: Iterable[Record]) -> list[Average]:
    """The averages of one model in one training seed; where a task was drawn several times, one a draw.

    Of a set measured several times in one way the last counts. A probe by scikit-learn counts only where there is no
    other of the set: it is a second protocol.
    """
    kept: dict[tuple[object, ...], Record] = {}
    plain = [one for one in records if one.value is not None and not is_derived(one)]
    for one in sorted(plain, key=lambda one: "scikit-learn" not in one.protocol):
        kept[one.task, one.dataset, one.split, one.metric, draw_of(one.protocol)] = one
    own = sorted(kept.values(), key=lambda one: (one.dataset != _IMAGENET, one.dataset, one.split))
    return _six_tasks(own) + _out_of_domain(own)


def pictures_of(record: Record) -> tuple[str, str]:
    """Whose pictures a record is about, see `shifts.pictures_of`."""
    return shifts.pictures_of(record.dataset), record.split


def _six_tasks(records: Sequence[Record]) -> list[Average]:
    zero_shot = [one for one in records if one.task == "zero-shot" and base_of(one.dataset) is None]
    on_imagenet = [one for one in zero_shot if one.dataset == _IMAGENET]
    retrieval = [one for one in records if one.task == "retrieval" and base_of(one.dataset) is None]
    chosen: dict[str, tuple[Callable[[Record], bool], Sequence[Record]]] = {
        "linear probing": (_headline_of_probe, [one for one in records if one.task == "linear-probe"]),
        "few-shot": (_is("acc1"), [one for one in records if one.task == "few-shot"]),
        "image retrieval": (_is("image_retrieval_recall@5"), retrieval),
        "text retrieval": (_is("text_retrieval_recall@5"), retrieval),
        "zero-shot": (_is("acc1"), on_imagenet or zero_shot),
    }
    found = [
        _mean(parts, SIX_TASKS, panel, AVERAGE, draw)
        for panel, (fits, own) in chosen.items()
        for draw, parts in _by_draw([one for one in own if fits(one)]).items()
    ]
    # the paper's panel is about one base; corrupted sets stand in where no set of another kind is shifted
    found += [_mean(own, SIX_TASKS, "out of domain", AVERAGE) for _, own in _shifts(records)[:1]]
    return found


def _by_draw(records: Sequence[Record]) -> Mapping[int | None, list[Record]]:
    """The records of each draw that no set lacks; a set in which nothing is drawn is part of every draw."""
    sets: dict[tuple[str, str], dict[int | None, Record]] = {}
    for one in records:
        sets.setdefault((one.dataset, one.split), {})[draw_of(one.protocol)] = one
    draws = {draw for own in sets.values() for draw in own if draw is not None}
    if not draws:
        return {None: list(records)} if records else {}
    shared = [draw for draw in sorted(draws) if all(draw in own or None in own for own in sets.values())]
    return {draw: [own[draw] if draw in own else own[None] for own in sets.values()] for draw in shared}


def _out_of_domain(records: Sequence[Record]) -> list[Average]:
    found = []
    for base, own in _shifts(records):
        of_shifts = _mean(own, OUT_OF_DOMAIN, base.dataset, MEAN_OF_SHIFTS)
        found += [of_shifts, _mean([base, *own], OUT_OF_DOMAIN, base.dataset, MEAN_OF_ALL)]
        found.append(_drop(base, of_shifts))
    return found


def _shifts(records: Sequence[Record]) -> list[tuple[Record, list[Record]]]:
    """Each base with its shifts, zero-shot: real shifts first, then corrupted sets."""
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


def _headline_of_probe(record: Record) -> bool:
    return record.metric == headline_metric(record.dataset)


def _is(metric: str) -> Callable[[Record], bool]:
    return lambda record: record.metric == metric


def _mean(
    records: Sequence[Record], task: str, dataset: str, metric: str, draw: int | None = None
) -> Average:
    parts = tuple(Part(1 / len(records), one) for one in records)
    mean = sum(_value(one) for one in records) / len(records)
    whole = all(one.low is not None and one.high is not None for one in records)
    down = _combined([(one, _value(one) - (one.low or 0.0)) for one in records]) / len(records)
    up = _combined([(one, (one.high or 0.0) - _value(one)) for one in records]) / len(records)
    method = f"mean of {_named(records)}; {_methods(records)}"
    record = records[0].model_copy(
        update={
            "task": task,
            "dataset": dataset,
            "split": "test",
            "metric": metric,
            "value": mean,
            "count": sum(one.count for one in records),
            "low": mean - down if whole else None,
            "high": mean + up if whole else None,
            "protocol": method if draw is None else with_particulars(method, drawn(draw)),
        }
    )
    return Average(record, parts)


def _drop(base: Record, of_shifts: Average) -> Average:
    mean = of_shifts.record
    value = _value(base) - _value(mean)
    records = [part.record for part in of_shifts.parts]
    same = all(pictures_of(one) == pictures_of(base) for one in records)
    low = high = None
    if base.low is not None and base.high is not None and mean.low is not None and mean.high is not None:
        low = value - _joined(same, _value(base) - base.low, mean.high - _value(mean))
        high = value + _joined(same, base.high - _value(base), _value(mean) - mean.low)
    record = mean.model_copy(
        update={
            "metric": DROP,
            "value": value,
            "count": base.count + mean.count,
            "low": low,
            "high": high,
            "protocol": f"{_named([base])} minus the mean of {_named(records)}; {_methods([base, *records])}",
        }
    )
    return Average(record, (Part(1.0, base), *(Part(-part.weight, part.record) for part in of_shifts.parts)))


def _joined(same: bool, first: float, second: float) -> float:
    """Two halves together: of the same pictures at most their sum."""
    return first + second if same else math.hypot(first, second)


def _value(record: Record) -> float:
    return record.value or 0.0  # those without one are left out before


def _combined(halves: Sequence[tuple[Record, float]]) -> float:
    """The half of the sum's interval: of the same pictures added, of others the root of the squares' sum."""
    added: dict[tuple[str, str], float] = {}
    for record, half in halves:
        added[pictures_of(record)] = added.get(pictures_of(record), 0.0) + half
    return math.hypot(*added.values())


def _named(records: Sequence[Record]) -> str:
    sets: dict[str, list[str]] = {}
    for one in records:
        sets.setdefault(one.metric, []).append(f"{one.dataset} ({one.split})")
    return ", and of ".join(f"{metric} on {', '.join(names)}" for metric, names in sets.items())


def _methods(records: Sequence[Record]) -> str:
    """How each set was measured, in short; the digest differs where any of it does."""
    methods = [(one.task, one.dataset, one.split, one.metric, method_of(one.protocol)) for one in records]
    digest = hashlib.sha256(repr(sorted(methods)).encode()).hexdigest()[:8]
    kinds = ", ".join(sorted({method.partition(";")[0] for *_, method in methods}))
    return f"{kinds} as measured on each ({digest}); intervals of the sets combined"

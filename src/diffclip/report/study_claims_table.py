"""The table of the paper's claims, and what its notes say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from diffclip.data.shifts import base_of
from diffclip.evaluation.averages import SIX_TASKS
from diffclip.report.compare import ENOUGH_SEEDS, Measure
from diffclip.report.metrics import dataset_name, measure_name, metric_name
from diffclip.report.sets import set_name, sets_of
from diffclip.report.study_claims import (
    CLOSE,
    FEW_PARAMETERS,
    LITTLE_TIME,
    OPEN,
    Claim,
    Judged,
    judged_claims,
    not_measured,
)
from diffclip.report.study_data import StudyData
from diffclip.report.study_expense import time_note
from diffclip.report.study_pairs import NONE, detectable_in, difference_text, enumerated, p_cell
from diffclip.report.study_paper import printed_difference
from diffclip.report.tables import Row, Table

_PAPERS_BASE = "imagenet1k"


def claims_table(data: StudyData) -> Table | None:
    """A row a claim; None where none could be measured."""
    judged = judged_claims(data)
    if not judged:
        return None
    tested = detectable_in([one.test if one.claim.kind == "better" else None for one in judged])
    return Table(
        title="The paper's claims at this size",
        columns=[
            *("claim", "task", "verdict", "the other's score (chance)", "difference", "p (corrected)"),
            *("detectable", "seeds", "paper"),
        ],
        rows=[_row(one, detectable) for one, detectable in zip(judged, tested, strict=True)],
        notes=_notes(data, judged),
        numeric=False,
    )


def measure_text(measure: Measure) -> str:
    """What a task was measured by and on: "text→image R@5 on Flickr8k (val)"."""
    if measure.task != SIX_TASKS:
        return f"{measure_name(measure)} on {dataset_name(measure.dataset)}"
    sets = sets_of(measure)
    bases = {base_of(dataset) for dataset, _ in sets}
    base = bases.pop() if len(bases) == 1 else None
    named = [set_name(name) if base else dataset_name(name) for name, _ in sets]
    head = measure.protocol.partition(";")[0]
    metrics = [
        metric_name(part.partition(" on ")[0]) for part in head.removeprefix("mean of ").split(", and of ")
    ]
    over = f"{set_name(base)} {', '.join(named)}" if base else ", ".join(named)
    split = f" ({sets[0][1]})" if len(sets) == 1 else ""
    return f"{' and '.join(metrics)} on {over}{split}"


def _row(one: Judged, detectable: float | None) -> Row:
    exact = one.claim.kind == "parameters"
    difference = difference_text(one.test, 3 if exact else 1)
    if one.claim.kind in ("parameters", "time"):
        value, _, bracket = difference.partition(" [")
        # what is counted is the same for every seed
        difference = f"{value} %" + (f" [{bracket}" if bracket and not exact else "")
    bound = NONE if detectable is None else f"{100 * detectable:.1f}"
    if one.margin is not None:
        bound = f"margin {'−' if one.claim.kind == 'as good' else ''}{100 * one.margin:.1f}"
    chance = f" ({one.claim.baseline} is at chance)" if one.at_chance else ""
    return Row(
        "seed" if one.word == OPEN else "one",
        [
            one.claim.words,
            one.claim.task,
            f"{one.word}{chance}" if one.word == OPEN else f"**{one.word}**",
            _level(one),
            difference,
            p_cell(one.test.p, one.p) if one.claim.kind == "better" else NONE,
            bound,
            str(one.seeds) if one.seeds else f"{one.test.difference.n} rounds",
            printed_difference(one.claim.treated, one.claim.baseline, one.claim.task),
        ],
    )


def _level(one: Judged) -> str:
    """What is compared with, and what chance reaches: "8.2 (5.5)"."""
    if one.other is None:
        return NONE
    chance = NONE if one.other.chance is None else f"{100 * one.other.chance:.1f}"
    return f"{100 * one.other.mean:.1f} ({chance})"


def _notes(data: StudyData, judged: Sequence[Judged]) -> list[str]:
    tests = sum(one.p is not None for one in judged)
    measures = {one.claim.task: one.measure for one in judged if one.measure is not None}
    told = "; ".join(f"{task}: {measure_text(measure)}" for task, measure in measures.items())
    lacking = enumerated(list(map(_named, not_measured(data))))
    notes = [
        "Differences are paired by seed, in points (of parameters and time: in %), from "
        f"{ENOUGH_SEEDS} seeds on with their 95 % interval (Student's t).",
        f"A claim to be better holds where p < 5 % after Holm's correction for the {tests} tests of this table, does "
        "not hold where that is so in the other direction, and else cannot be told."
        if tests
        else f"Nothing was tested: it takes {ENOUGH_SEEDS} seeds that differ.",
        f"Detectable: the smallest true difference that so many seeds find in 80 % of cases, at 5 % ÷ {tests}, the "
        "strictest step of that correction."
        if tests
        else "",
        f"At least about as good: the whole interval lies above −{100 * CLOSE:g} % of what the other is above chance; "
        f"hardly more: beneath {100 * FEW_PARAMETERS:g} % of parameters, {100 * LITTLE_TIME:g} % of time; these "
        "margins stand in place of what is detectable, and each of these claims is judged by itself.",
        *_chance_notes(judged),
        f"Measured by: {told}." if told else "",
        _stand_in(measures),
        _chosen_on(data, measures),
        time_note(data, brief=True),
        "Paper: the gains it prints for ViT-B/16, one training run a model, or of two printed gains the difference.",
        f"Not measured here: {lacking}." if lacking else "",
    ]
    return [note for note in notes if note]


def _named(claim: Claim) -> str:
    return claim.words if claim.kind in ("parameters", "time") else f"{claim.words} ({claim.task})"


def _chance_notes(judged: Sequence[Judged]) -> list[str]:
    if not any(one.other and one.other.chance is not None for one in judged):
        return []
    notes = [
        "Chance: one of the classes (few-shot: of an episode), a random order, or a map that is the same everywhere; "
        "of a mean over sets the mean."
    ]
    if any(one.at_chance for one in judged):
        notes.append(
            "At chance: the 95 % interval of its score over seeds does not lie above chance; a claim to be as good "
            "then says nothing, and to be better takes a score that lies above chance itself."
        )
    return notes


def _stand_in(measures: dict[str, Measure]) -> str:
    """That other shifts stand in for the paper's; empty where they are the paper's."""
    measure = measures.get("out of domain")
    if measure is None:
        return ""
    bases = {base_of(dataset) for dataset, _ in sets_of(measure)} - {_PAPERS_BASE, None}
    names = enumerated([set_name(base) for base in sorted(filter(None, bases))])
    return (
        f"Out of domain: altered pictures of {names} stand in for the paper's shifts of ImageNet."
        if names
        else ""
    )


def _chosen_on(data: StudyData, measures: dict[str, Measure]) -> str:
    """Which tasks are measured on the pictures that settings and checkpoints were chosen on."""
    name = Path(data.study.data).name
    tasks = [
        task
        for task, measure in measures.items()
        if (name, "val") in (sets_of(measure) or [(measure.dataset, measure.split)])
    ]
    if not tasks:
        return ""
    are = "are" if len(tasks) > 1 else "is"
    what = "settings and each run's checkpoint were" if data.study.sweep else "each run's checkpoint was"
    named = enumerated(tasks)
    return f"{named[0].upper()}{named[1:]} {are} measured on the pictures that {what} chosen on."

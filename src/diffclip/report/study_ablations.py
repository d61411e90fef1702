"""The ablations: how each arm scores, and how it differs from what it is one factor away from."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from diffclip.evaluation.significance import SeedTest
from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.study_data import StudyData
from diffclip.report.study_expense import ratio_text, time_note
from diffclip.report.study_missing import diverged_sentence
from diffclip.report.study_pairs import (
    NONE,
    corrected,
    detectable_text,
    difference_text,
    enumerated,
    p_cell,
    paired,
)
from diffclip.report.tables import Row, Table
from diffclip.study.recipe import BASELINE, TREATED

SCORE_MEANING = (
    "Score: the best mean of the six recalls (image and text retrieval at 1, 5 and 10) on the validation split, of the "
    "checkpoint that is kept"
)
_WORDS = {
    "DiffCLIP-dynamic": "λ_init by layer (dynamic)",
    "DiffCLIP-vision": "in the vision tower alone",
    "DiffCLIP-v2": "V2 in place of V1",
}
"""Of models that a study may have among its models, where it gives no words."""


@dataclass(frozen=True)
class Ablated:
    """One arm with its scores by seed; `own` is its difference to `against`, with p by itself and corrected.

    `to_same` is its difference to CLIP with DiffCLIP's settings, where the arm has these too.
    """

    arm: str
    factor: str
    against: str | None
    scores: dict[int, float]
    own: SeedTest | None
    p: float | None
    to_clip: SeedTest | None
    to_same: SeedTest | None

    @property
    def mean(self) -> float:
        return statistics.fmean(self.scores.values())


def ablated(data: StudyData) -> list[Ablated]:
    """The arms that have scores: the chain from CLIP to DiffCLIP, then what is one factor away from either.

    Only the seeds of the ablations count, for the models as well. Empty where the study has no ablations.
    """
    if data.study.ablations is None:
        return []
    seeds = set(data.study.ablations.seeds)
    scores = {
        arm: {seed: score for seed, score in data.scores(arm).items() if seed in seeds} for arm in data.arms
    }
    against = {arm: _against(data, arm) for arm in scores}
    shown = [arm for arm in _ordered(data) if scores.get(arm)]
    if not any(arm in data.study.ablations.arms for arm in shown):
        return []

    def test(arm: str, other: str | None) -> SeedTest | None:
        return paired(scores[arm], scores[other]) if other in scores and other != arm else None

    same = clip_as_treated(data)
    own = [test(arm, against[arm]) for arm in shown]
    return [
        Ablated(
            arm,
            _factor(data, arm),
            against[arm],
            scores[arm],
            one,
            p,
            test(arm, BASELINE),
            test(arm, same) if data.study.tuned_as(arm) == TREATED else None,
        )
        for arm, one, p in zip(shown, own, corrected(own), strict=True)
    ]


def ablation_table(data: StudyData) -> Table | None:
    """A row an arm; None where there is none. Where some have more seeds, a column is of those that all have."""
    rows = ablated(data)
    if not rows:
        return None
    shared = shared_seeds(rows)
    unequal = any(len(row.scores) > len(shared) for row in rows)
    extra = [f"in {seeds_text(shared)}, which all have"] if unequal and shared else []
    same = [f"difference to {clip_as_treated(data)}"] if any(row.to_same for row in rows) else []
    timed = ["time a step ÷ CLIP's"] if data.timing else []
    made = []
    for row in rows:
        parameters = data.costs(row.arm, "parameters")
        made.append(
            Row(
                "one",
                [
                    row.arm,
                    f"{row.against}: {row.factor}" if row.against else NONE,
                    f"{100 * row.mean:.2f}",
                    *[f"{100 * statistics.fmean(row.scores[seed] for seed in shared):.2f}" for _ in extra],
                    difference_text(row.own, 2),
                    p_cell(row.own.p if row.own else None, row.p),
                    difference_text(row.to_clip, 2),
                    *[difference_text(row.to_same, 2) for _ in same],
                    f"{min(parameters.values()):,.0f}" if parameters else NONE,
                    *[ratio_text(data, row.arm) for _ in timed],
                    str(len(row.scores)),
                ],
            )
        )
    return Table(
        title="Validation score by arm",
        columns=[
            *("arm", "one factor away from", "score (%)", *extra, "difference to that", "p (corrected)"),
            *("difference to CLIP", *same, "parameters", *timed, "seeds"),
        ],
        rows=made,
        notes=_notes(data, rows, unequal),
        numeric=False,
    )


def _notes(data: StudyData, rows: Sequence[Ablated], unequal: bool) -> list[str]:
    tests = sum(row.p is not None for row in rows)
    detectable = detectable_text([row.own for row in rows])
    notes = [
        f"{SCORE_MEANING}, mean over seeds, in %.",
        f"Differences in points, paired by seed, from {ENOUGH_SEEDS} seeds on with their 95 % interval (Student's t).",
        "They are over the seeds that both arms have, and so need not be the differences of the scores."
        if unequal
        else "",
        f"With fewer than {ENOUGH_SEEDS} seeds nothing is tested, and a place in this table is no rank."
        if any(len(row.scores) < ENOUGH_SEEDS for row in rows)
        else "",
        f"Corrected: p of the difference to the arm that it is against, Holm over {tests} arms."
        if tests > 1
        else "",
        f"At 5 % ÷ {tests}, the strictest step of that, so many seeds find a true difference of {detectable} in 80 % "
        "of cases, by the arm."
        if detectable
        else "",
        _settings_note(data, rows),
        diverged_sentence(data),
        time_note(data, brief=True),
    ]
    return [note for note in notes if note]


def clip_as_treated(data: StudyData) -> str | None:
    """The arm that is CLIP with DiffCLIP's settings, all else equal; None where there is none of its own."""
    study = data.study
    wanted = study.model_of(BASELINE)
    return next(
        (
            arm
            for arm in study.arms
            if arm not in data.repeats and study.tuned_as(arm) == TREATED and study.model_of(arm) == wanted
        ),
        None,
    )


def _settings_note(data: StudyData, rows: Sequence[Ablated]) -> str:
    """Which differences are of learning rate or weight decay as well; empty where none is."""
    if len(set(data.chosen.values())) < 2:
        return ""
    as_clip = [row.arm for row in rows if data.study.tuned_as(row.arm) == BASELINE]
    have, same = "has" if len(as_clip) == 1 else "have", clip_as_treated(data)
    known = f", those to {same} are not" if any(row.to_same for row in rows) else ""
    return (
        f"{enumerated(as_clip)} {have} CLIP's learning rate and weight decay, the others DiffCLIP's: their differences "
        f"to CLIP are of these settings too{known}."
    )


def shared_seeds(rows: Sequence[Ablated]) -> list[int]:
    """The seeds that all these arms have."""
    return sorted(set.intersection(*(set(row.scores) for row in rows))) if rows else []


def seeds_text(seeds: Sequence[int]) -> str:
    """ "seed 0", "seeds 0 and 1"."""
    return f"seed{'s' * (len(seeds) != 1)} {enumerated([str(seed) for seed in seeds])}"


def _against(data: StudyData, arm: str) -> str | None:
    """What an arm is one factor away from: as the study says (or the arm that this repeats), else the swept model whose
    settings it has.
    """
    if arm == BASELINE:
        return None
    told = data.study.arms[arm].against
    if told is not None:
        return data.repeats.get(told, told)
    return BASELINE if arm == TREATED else data.study.tuned_as(arm)


def _factor(data: StudyData, arm: str) -> str:
    """What differs from the arm that it is against: in the study's words, else the changed keys."""
    told = data.study.arms[arm].factor
    other = _against(data, arm)
    if told is not None or other is None:
        return told or ""
    if arm == TREATED:
        return "differential attention"
    model = str(data.study.arms[arm].change.get("model"))
    if model in _WORDS:
        return _WORDS[model]
    known = data.study.arms[other].change
    changed = {key: value for key, value in data.study.arms[arm].change.items() if known.get(key) != value}
    return ", ".join(f"{key} {value}" for key, value in changed.items())


def _ordered(data: StudyData) -> list[str]:
    """The chain from CLIP to DiffCLIP, then the others in the order of the study, DiffCLIP's before CLIP's."""
    arms = list(data.study.arms)
    chain = [BASELINE]
    for arm in chain:
        differential = (one for one in arms if data.study.tuned_as(one) == TREATED and one != TREATED)
        chain += [one for one in differential if _against(data, one) == arm and one not in chain]
    rest = [arm for arm in arms if arm not in (*chain, TREATED)]
    rest.sort(key=lambda arm: data.study.tuned_as(arm) == BASELINE)
    return [*chain, TREATED, *rest]

"""The ablations: how each arm scores, how it differs from what it is one factor away from, and which is best."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from diffclip.evaluation.significance import SeedTest
from diffclip.report.study_claims import more_of
from diffclip.report.study_data import StudyData
from diffclip.report.study_pairs import (
    NONE,
    corrected,
    difference_text,
    enumerated,
    is_real,
    p_cell,
    paired,
    signed,
)
from diffclip.report.tables import Row, Table
from diffclip.study.plan import tuned_as
from diffclip.study.recipe import BASELINE, TREATED

SCORE_MEANING = (
    "Score: the best mean of the six recalls (image and text retrieval at 1, 5 and 10) on the validation split, of the "
    "checkpoint that is kept"
)
_NEXT = 2
"""How many after the best are named with their scores."""


@dataclass(frozen=True)
class Ablated:
    """One arm with its scores by seed; `own` is its difference to `against`, with p by itself and corrected."""

    arm: str
    factor: str
    against: str | None
    scores: dict[int, float]
    own: SeedTest | None
    p: float | None
    to_clip: SeedTest | None
    to_diffclip: SeedTest | None

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
            test(arm, TREATED),
        )
        for arm, one, p in zip(shown, own, corrected(own), strict=True)
    ]


def ablation_table(data: StudyData) -> Table | None:
    """A row an arm; None where there is none."""
    rows = ablated(data)
    if not rows:
        return None
    made = []
    for row in rows:
        parameters = data.costs(row.arm, "parameters")
        time = more_of(data, "step_seconds", row.arm, BASELINE)
        made.append(
            Row(
                "one",
                [
                    row.arm,
                    f"{row.against}: {row.factor}" if row.against else NONE,
                    f"{100 * row.mean:.2f}",
                    difference_text(row.own, 2),
                    p_cell(row.own.p if row.own else None, row.p),
                    difference_text(row.to_clip, 2),
                    difference_text(row.to_diffclip, 2),
                    f"{min(parameters.values()):,.0f}" if parameters else NONE,
                    f"{1 + time.difference.mean:.2f}" if time else NONE,
                    str(len(row.scores)),
                ],
            )
        )
    tests = sum(row.p is not None for row in rows)
    notes = [
        f"{SCORE_MEANING}, mean over seeds, in %.",
        "Differences in points, paired by seed, with their 95 % interval (Student's t).",
        f"Corrected: p of the difference to the arm that it is against, Holm over {tests} arms."
        if tests > 1
        else "",
        side_by_side_note(data, [row.arm for row in rows]),
    ]
    return Table(
        title="Validation score by arm",
        columns=[
            *("arm", "one factor away from", "score (%)", "difference to that", "p (corrected)"),
            *("difference to CLIP", "difference to DiffCLIP", "parameters", "time a step ÷ CLIP's", "seeds"),
        ],
        rows=made,
        notes=[note for note in notes if note],
        numeric=False,
    )


def best_sentence(data: StudyData) -> str:
    """Which variant does best at this size, with its cost, and what it can be told from; empty without ablations.

    Arms are ranked and compared over the seeds that all of them have.
    """
    rows = ablated(data)
    shared = set.intersection(*(set(row.scores) for row in rows)) if rows else set()
    if len(rows) < 2:
        return ""
    if not shared:
        return "Which variant does best cannot be said yet: no seed is finished for all arms."
    scores = {row.arm: {seed: row.scores[seed] for seed in sorted(shared)} for row in rows}
    means = {arm: statistics.fmean(own.values()) for arm, own in scores.items()}
    ranked = sorted(rows, key=lambda row: -means[row.arm])
    best = ranked[0].arm
    others = [row for row in ranked if row.arm != best]
    tests = [paired(scores[best], scores[row.arm]) for row in others]
    ps = dict(zip([row.arm for row in others], corrected(tests), strict=True))
    apart = [arm for arm, p in ps.items() if is_real(p)]
    alike = [arm for arm, p in ps.items() if not is_real(p)]
    seeds = f"{len(shared)} training seed{'s' * (len(shared) != 1)}"
    text = f"{best} does best at this size, {100 * means[best]:.2f} % over {seeds}{_cost_words(data, best)}"
    if best != BASELINE and BASELINE in means:
        text += (
            f"; CLIP has {100 * means[BASELINE]:.2f} % ({signed(means[best] - means[BASELINE], 2)} points)"
        )
    text += (
        f". Next come {enumerated([f'{row.arm} ({100 * means[row.arm]:.2f} %)' for row in others[:_NEXT]])}. "
    )
    if all(p is None for p in ps.values()):
        text += "So few seeds do not tell whether its lead is luck."
    else:
        text += f"{_told_from(apart, alike)} (paired by seed, Holm over its {len(ps)} comparisons)."
    differential = [row.arm for row in ranked if tuned_as(data.study, row.arm) == TREATED]
    if differential and best not in differential:
        first = differential[0]
        text += (
            f" Of those with differential attention {first} does best, {100 * means[first]:.2f} %"
            f"{_cost_words(data, first)}."
        )
    return (
        f"{text} The best of {len(rows)} was chosen by the very scores that are shown, which flatters it: "
        "new seeds would have to confirm it."
    )


def side_by_side_note(data: StudyData, arms: list[str]) -> str:
    """How far the times of these arms can be trusted."""
    devices = data.told("device", arms)
    beside = data.told("side_by_side", arms)
    parts = [f"Device: {enumerated(devices)}." if devices else ""]
    if any(number != "1" for number in beside):
        parts.append(f"{' or '.join(beside)} runs went side by side, so times are rough.")
    if len(devices) > 1:
        parts.append("Times of different devices are not comparable.")
    return " ".join(filter(None, parts))


def _told_from(apart: list[str], alike: list[str]) -> str:
    """What the best can be told from; of a long list of what not, the nearest are named, and CLIP and DiffCLIP."""
    named = [arm for index, arm in enumerate(alike) if index < _NEXT or arm in (BASELINE, TREATED)]
    rest = len(alike) - len(named)
    others = [*named, f"{rest} other{'s' * (rest > 1)}"] if rest else named
    if not apart:
        return f"It cannot be told from any of the others: {enumerated(others)}"
    return f"It can be told from {enumerated(apart)}" + (f", not from {enumerated(others)}" if others else "")


def _cost_words(data: StudyData, arm: str) -> str:
    """ " with 0.02 % more parameters than CLIP and 1.05 times its time a step"."""
    more = more_of(data, "parameters", arm, BASELINE)
    time = more_of(data, "step_seconds", arm, BASELINE)
    if arm == BASELINE or more is None:
        return ""
    share = more.difference.mean
    parameters = (
        "as many parameters as CLIP"
        if share == 0
        else f"{100 * abs(share):.2g} % {'more' if share > 0 else 'fewer'} parameters than CLIP"
    )
    return f", with {parameters}" + (
        f" and {1 + time.difference.mean:.2f} times its time a step" if time else ""
    )


def _against(data: StudyData, arm: str) -> str | None:
    """What an arm is one factor away from: as the study says, else the swept model whose settings it has."""
    if arm == BASELINE:
        return None
    told = data.study.arms[arm].against
    if told is not None:
        return told
    return BASELINE if arm == TREATED else tuned_as(data.study, arm)


def _factor(data: StudyData, arm: str) -> str:
    """What differs from the arm that it is against: in the study's words, else the changed keys."""
    told = data.study.arms[arm].factor
    other = _against(data, arm)
    if told is not None or other is None:
        return told or ""
    if arm == TREATED:
        return "differential attention"
    known = data.study.arms[other].change
    changed = {key: value for key, value in data.study.arms[arm].change.items() if known.get(key) != value}
    return ", ".join(f"{key} {value}" for key, value in changed.items())


def _ordered(data: StudyData) -> list[str]:
    """The chain from CLIP to DiffCLIP, then the others in the order of the study, DiffCLIP's before CLIP's."""
    arms = list(data.study.arms)
    chain = [BASELINE]
    for arm in chain:
        differential = (one for one in arms if tuned_as(data.study, one) == TREATED and one != TREATED)
        chain += [one for one in differential if _against(data, one) == arm and one not in chain]
    rest = [arm for arm in arms if arm not in (*chain, TREATED)]
    rest.sort(key=lambda arm: tuned_as(data.study, arm) == BASELINE)
    return [*chain, TREATED, *rest]

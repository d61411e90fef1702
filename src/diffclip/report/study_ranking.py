"""Which arm of a study has the highest mean, as far as its seeds can tell; few seeds rank nothing, and that is said."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.study_ablations import Ablated, ablated, seeds_text, shared_seeds
from diffclip.report.study_data import StudyData
from diffclip.report.study_expense import cost_words
from diffclip.report.study_luck import luck_of
from diffclip.report.study_pairs import corrected, enumerated, is_real, paired, signed
from diffclip.study.recipe import BASELINE, TREATED

_NEXT = 2
"""How many after the best are named with their scores."""
_ROUNDING = 1e-12


def ranking(data: StudyData) -> list[str]:
    """Paragraphs: of the arms with seeds enough, which has the highest mean, its cost, and what it can be told from;
    then the order of all arms in the seeds that all have, where those are too few to rank. Empty without ablations.
    """
    rows = ablated(data)
    if len(rows) < 2:
        return []
    many = [row for row in rows if len(row.scores) >= ENOUGH_SEEDS]
    tested = len(many) > 1 and len(shared_seeds(many)) >= ENOUGH_SEEDS
    if tested and len(many) == len(rows):
        return [_best(data, rows, f"of all {len(rows)} arms")]
    return [
        *(
            [_best(data, many, f"of the {len(many)} arms with {ENOUGH_SEEDS} seeds or more")]
            if tested
            else []
        ),
        _order(data, rows),
    ]


def _best(data: StudyData, rows: list[Ablated], among: str) -> str:
    """The highest of `rows`, which have seeds enough in common, and what it can be told from."""
    shared = shared_seeds(rows)
    scores = {row.arm: {seed: row.scores[seed] for seed in shared} for row in rows}
    means = {arm: statistics.fmean(own.values()) for arm, own in scores.items()}
    leaders, others = _leaders(means)
    best = leaders[0]
    level = f"{100 * means[best]:.2f} % over {len(shared)} training seeds"
    if len(leaders) > 1:
        return f"By validation score, {among} {enumerated(leaders)} share the highest mean, {level}."
    text = f"By validation score, {best} has the highest mean {among}, {level}"
    cost = cost_words(data, best)
    text += f",{cost}" if cost else ""
    if best != BASELINE and BASELINE in means:
        text += (
            f"; CLIP has {100 * means[BASELINE]:.2f} % ({signed(means[best] - means[BASELINE], 2)} points)"
        )
    text += f". Next: {enumerated([f'{arm} ({100 * means[arm]:.2f} %)' for arm in others[:_NEXT]])}. "
    ps = dict(zip(others, corrected([paired(scores[best], scores[arm]) for arm in others]), strict=True))
    return (
        f"{text}{_told_from(ps)}{_differential(data, [*leaders, *others], means)} The highest of {len(rows)} was "
        "chosen by the very scores that are shown, which flatters it: new seeds would have to confirm it."
    )


def _order(data: StudyData, rows: list[Ablated]) -> str:
    """All arms from high to low in the few seeds that all have, how far luck goes there, and what the first costs."""
    shared = shared_seeds(rows)
    if not shared:
        return "Which arm does best cannot be said: there is no seed in which all arms have a score."
    means = {row.arm: statistics.fmean(row.scores[seed] for seed in shared) for row in rows}
    leaders, others = _leaders(means)
    ranked = [*leaders, *others]
    only, these = ("the only one", "that seed") if len(shared) == 1 else ("the only ones", "those seeds")
    text = (
        f"Which arm does best cannot be told from {seeds_text(shared)}, {only} that all {len(rows)} arms have. The "
        "order of the validation scores there, a hint at most: "
        f"{enumerated([f'{arm} {100 * means[arm]:.2f} %' for arm in ranked])}."
    )
    if len(leaders) > 1:
        return text
    best = next(row for row in rows if row.arm == leaders[0])
    cost = cost_words(data, best.arm)
    text += f" The highest, {best.arm}, comes{cost}." if cost else ""
    text += _differential(data, ranked, means)
    treated = next((row for row in rows if row.arm == TREATED), None)
    if treated and len(treated.scores) > len(shared):
        text += (
            f" {TREATED} has {100 * means[TREATED]:.2f} % there and {100 * treated.mean:.2f} % over its "
            f"{len(treated.scores)} seeds: what it gains or loses there is in every difference to it that is of "
            f"{these} alone."
        )
    luck = luck_of(data)
    if luck is None:
        return text
    bound = luck.bound(len(shared))
    near = sum(means[best.arm] - means[arm] <= bound for arm in others)
    return (
        f"{text} How far luck goes: two equally good arms that were named beforehand differ by up to "
        f"{100 * bound:.1f} points in {seeds_text(shared)} (19 of 20 times; from what is left of all scores when each "
        f"arm and each seed has its mean, {luck.freedom} degrees of freedom). The highest of {len(ranked)} is ahead by "
        f"luck more often than that; {near} of the {len(others)} others {'is' if near == 1 else 'are'} that near to it."
    )


def _leaders(means: Mapping[str, float]) -> tuple[list[str], list[str]]:
    """The arms with the highest mean, more than one where they are equal, and the others from high to low."""
    ranked = sorted(means, key=lambda arm: -means[arm])
    leaders = [arm for arm in ranked if means[ranked[0]] - means[arm] <= _ROUNDING]
    return leaders, ranked[len(leaders) :]


def _differential(data: StudyData, ranked: Sequence[str], means: Mapping[str, float]) -> str:
    """ " Of those with differential attention …", where the first of all is none of them."""
    own = [arm for arm in ranked if _subtracts(data, arm)]
    if not own or own[0] == ranked[0]:
        return ""
    first = own[0]
    cost = cost_words(data, first)
    text = f" Of those with differential attention {first} is highest: {100 * means[first]:.2f} %"
    return f"{text},{cost}." if cost else f"{text}."


def _subtracts(data: StudyData, arm: str) -> bool:
    """Whether an arm has a second map to subtract, which those with λ held at 0 have not."""
    config = data.study.training(data.study.arms[arm].change).config()
    return data.study.is_differential(arm) and config.differential.lambda_fixed != 0


def _told_from(ps: Mapping[str, float | None]) -> str:
    """What the highest can be told from, by the corrected p of its differences to the others; None is not tested."""
    tested = [arm for arm, p in ps.items() if p is not None]
    apart = [arm for arm in tested if is_real(ps[arm])]
    alike = [arm for arm in tested if arm not in apart]
    how = f"paired by seed, Holm over its {len(tested)} comparisons" if len(tested) > 1 else "paired by seed"
    if apart:
        text = f"It can be told from {enumerated(apart)}" + (
            f", not from {_shortened(alike)}" if alike else ""
        )
    else:
        text = f"It cannot be told from {_shortened(alike)}"
    parts = [f"{text} ({how})."] if tested else []
    same = [arm for arm in ps if arm not in tested]
    if same:
        parts.append(
            f"Its difference to {_shortened(same)} is the same in every seed, so that nothing tells it from luck."
        )
    return " ".join(parts)


def _shortened(arms: Sequence[str]) -> str:
    """Of a long list the nearest, CLIP and DiffCLIP by name, and how many others."""
    short = len(arms) <= 2 * _NEXT
    named = [arm for index, arm in enumerate(arms) if short or index < _NEXT or arm in (BASELINE, TREATED)]
    rest = len(arms) - len(named)
    return enumerated([*named, f"{rest} other{'s' * (rest > 1)}"] if rest else named)

"""Which variant does best in a study, as far as its seeds can tell; a single seed ranks nothing, and that is said."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.study_ablations import Ablated, ablated, seeds_text, shared_seeds
from diffclip.report.study_claims import more_of
from diffclip.report.study_data import StudyData
from diffclip.report.study_pairs import corrected, enumerated, is_real, luck_of, paired, signed
from diffclip.study.recipe import BASELINE, TREATED

_NEXT = 2
"""How many after the best are named with their scores."""


def ranking(data: StudyData) -> list[str]:
    """Paragraphs: of the arms with seeds enough, which does best, with its cost, and what it can be told from; then
    the order of all arms in the seeds that all have, where those are too few to rank. Empty without ablations.
    """
    rows = ablated(data)
    if len(rows) < 2:
        return []
    many = [row for row in rows if len(row.scores) >= ENOUGH_SEEDS]
    tested = len(many) > 1 and len(shared_seeds(many)) >= ENOUGH_SEEDS
    if tested and len(many) == len(rows):
        return [_best(data, rows, "")]
    return [
        *([_best(data, many, "by validation score, of the arms with seeds enough,")] if tested else []),
        _order(data, rows),
    ]


def _best(data: StudyData, rows: list[Ablated], among: str) -> str:
    """The best of `rows`, which have seeds enough in common, and what it can be told from."""
    shared = shared_seeds(rows)
    scores = {row.arm: {seed: row.scores[seed] for seed in shared} for row in rows}
    means = {arm: statistics.fmean(own.values()) for arm, own in scores.items()}
    ranked = sorted(means, key=lambda arm: -means[arm])
    best, *others = ranked
    ps = dict(zip(others, corrected([paired(scores[best], scores[arm]) for arm in others]), strict=True))
    apart = [arm for arm, p in ps.items() if is_real(p)]
    alike = [arm for arm, p in ps.items() if not is_real(p)]
    named = f"{among[0].upper()}{among[1:]} {best}" if among else best
    text = f"{named} does best at this size, {100 * means[best]:.2f} % over {len(shared)} training seeds"
    cost = _cost_words(data, best)
    text += f",{cost}" if cost else ""
    if best != BASELINE and BASELINE in means:
        text += (
            f"; CLIP has {100 * means[BASELINE]:.2f} % ({signed(means[best] - means[BASELINE], 2)} points)"
        )
    text += f". Next come {enumerated([f'{arm} ({100 * means[arm]:.2f} %)' for arm in others[:_NEXT]])}. "
    text += f"{_told_from(apart, alike)} (paired by seed, Holm over its {len(ps)} comparisons)."
    return (
        f"{text}{_differential(data, ranked, means)} The best of {len(rows)} was chosen by the very scores that are "
        "shown, which flatters it: new seeds would have to confirm it."
    )


def _order(data: StudyData, rows: list[Ablated]) -> str:
    """All arms from best to worst in the few seeds that all have, how far luck goes there, and what it costs."""
    shared = shared_seeds(rows)
    if not shared:
        return "Which variant does best cannot be said yet: no seed is finished for all arms."
    means = {row.arm: statistics.fmean(row.scores[seed] for seed in shared) for row in rows}
    ranked = sorted(means, key=lambda arm: -means[arm])
    best = ranked[0]
    only = "the only one" if len(shared) == 1 else "the only ones"
    text = (
        f"Which variant does best cannot be told from {seeds_text(shared)}, {only} that all {len(rows)} arms have. "
        f"The order there, a hint at most: {enumerated([f'{arm} {100 * means[arm]:.2f} %' for arm in ranked])}. "
        f"The highest, {best}, comes{_cost_words(data, best) or ' at no extra cost'}."
        f"{_differential(data, ranked, means)}"
    )
    bound = luck_of(data, len(shared))
    if bound is None:
        return text
    near = sum(means[best] - means[arm] <= bound for arm in ranked[1:])
    return (
        f"{text} How far luck goes: by the arms with {ENOUGH_SEEDS} seeds or more, two that are equally good differ by "
        f"up to {100 * bound:.1f} points in {seeds_text(shared)} (19 of 20 times); {near} of the {len(ranked) - 1} "
        "others are that near to the highest."
    )


def _differential(data: StudyData, ranked: Sequence[str], means: dict[str, float]) -> str:
    """ " Of those with differential attention …", where the first of all is none of them."""
    own = [arm for arm in ranked if _subtracts(data, arm)]
    if not own or own[0] == ranked[0]:
        return ""
    first = own[0]
    cost = _cost_words(data, first)
    text = f" Of those with differential attention {first} is highest: {100 * means[first]:.2f} %"
    return f"{text},{cost}." if cost else f"{text}."


def _subtracts(data: StudyData, arm: str) -> bool:
    """Whether an arm has a second map to subtract, which those with λ held at 0 have not."""
    config = data.study.training(data.study.arms[arm].change).config()
    return data.study.is_differential(arm) and config.differential.lambda_fixed != 0


def _told_from(apart: list[str], alike: list[str]) -> str:
    """What the best can be told from; of a long list of what not, the nearest are named, and CLIP and DiffCLIP."""
    short = len(alike) <= 2 * _NEXT
    named = [arm for index, arm in enumerate(alike) if short or index < _NEXT or arm in (BASELINE, TREATED)]
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
    return f" with {parameters}" + (
        f" and {1 + time.difference.mean:.2f} times its time a step" if time else ""
    )

"""How much of the difference between DiffCLIP and CLIP is the init: published against matched, all else equal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from diffclip.evaluation.averages import PANELS
from diffclip.evaluation.significance import SeedTest
from diffclip.report.compare import ENOUGH_SEEDS
from diffclip.report.study_claims import is_of
from diffclip.report.study_data import StudyData, mean_of
from diffclip.report.study_pairs import (
    NONE,
    corrected,
    difference_text,
    is_real,
    p_cell,
    paired,
    signed,
    values_of,
)
from diffclip.report.tables import Row, Table
from diffclip.study.recipe import BASELINE, TREATED

SCORE = "validation score"
"""The first row: the mean of the six recalls on the validation split, which every run has."""


@dataclass(frozen=True)
class InitRow:
    """One measure: published − matched of DiffCLIP, and the gaps of both to CLIP."""

    measure: str
    levels: dict[str, float]
    """Means of "CLIP", "matched" and "published"."""
    matched_gap: SeedTest | None
    published_gap: SeedTest | None
    init: SeedTest
    p: float | None

    @property
    def share(self) -> float | None:
        """Of the gap of the published init to CLIP, how much is init; None where the gap itself may be luck."""
        if self.published_gap is None or not is_real(self.published_gap.p):
            return None
        return self.init.difference.mean / self.published_gap.difference.mean


def init_rows(data: StudyData) -> list[InitRow]:
    """A row a measure where DiffCLIP was trained with both inits, none where it was not."""
    arms = {
        "CLIP": BASELINE,
        "matched": _with_init(data, "matched"),
        "published": _with_init(data, "published"),
    }
    rows = []
    for measure in (SCORE, *PANELS):
        values = _in_shared_seeds(_values(data, measure, arms))
        init = paired(values.get("published", {}), values.get("matched", {}))
        if init is None:
            continue
        levels = {name: mean for name, own in values.items() if (mean := mean_of(own)) is not None}
        gaps = [paired(values.get(name, {}), values.get("CLIP", {})) for name in ("matched", "published")]
        rows.append(InitRow(measure, levels, gaps[0], gaps[1], init, None))
    ps = corrected([row.init for row in rows])
    return [
        InitRow(row.measure, row.levels, row.matched_gap, row.published_gap, row.init, p)
        for row, p in zip(rows, ps, strict=True)
    ]


def init_table(data: StudyData) -> Table | None:
    """All measures; None where DiffCLIP was not trained with both inits. (CLIP's own are one and the same.)"""
    rows = init_rows(data)
    if not rows:
        return None
    names = ["CLIP", "matched", "published"]
    columns = ["measure (%)", *names, "matched − CLIP", "published − CLIP", "published − matched"]
    columns += ["p (corrected)", "share of the gap", "seeds"]
    made = []
    for row in rows:
        cells = [f"{100 * row.levels[name]:.2f}" if name in row.levels else NONE for name in names]
        cells += [difference_text(one, 2) for one in (row.matched_gap, row.published_gap, row.init)]
        cells += [p_cell(row.init.p, row.p), NONE if row.share is None else f"{100 * row.share:.0f} %"]
        made.append(Row("one", [row.measure, *cells, str(row.init.difference.n)]))
    tests = sum(row.p is not None for row in rows)
    notes = [
        f"Differences in points, paired by seed, from {ENOUGH_SEEDS} seeds on with their 95 % interval (Student's t).",
        f"Corrected: Holm over the {tests} rows that are tested." if tests > 1 else "",
        "DiffCLIP has the same settings with both inits; for CLIP they are one and the same init.",
        "Share of the gap: published − matched as a part of published − CLIP, where the latter has p < 5 % by itself.",
        "All of a row is over the seeds that its arms share.",
    ]
    return Table(
        f"{TREATED}: published init against matched", columns, made, [note for note in notes if note]
    )


def init_sentence(data: StudyData, brief: bool = False) -> str:
    """How much of DiffCLIP's gap is init, by the validation score; empty where it was not trained with both.

    `brief` leaves intervals and p to the table.
    """
    row = next((row for row in init_rows(data) if row.measure == SCORE), None)
    if row is None:
        return ""

    def told(test: SeedTest) -> str:
        return signed(test.difference.mean, 2) if brief else difference_text(test, 2)

    if row.published_gap is None or row.matched_gap is None:
        return f"Init: published − matched is {told(row.init)} points of the {SCORE}."
    text = (
        f"How much of the gap is init: by the {SCORE}, DiffCLIP − CLIP is {told(row.published_gap)} "
        f"points as published and {told(row.matched_gap)} with CLIP's init, so that the init makes "
        f"{told(row.init)}"
    )
    if row.init.difference.n < ENOUGH_SEEDS:
        return f"{text}; so few seeds do not tell whether that is luck."
    if row.init.p is None or row.p is None:
        return f"{text}, the same for every seed."
    real = "more than luck" if is_real(row.p) else "which cannot be told from luck"
    p = "" if brief else f" (p {p_cell(row.init.p)}, corrected {p_cell(row.p)})"
    return f"{text}, {real}{p}; {_share_words(row)}."


def _share_words(row: InitRow) -> str:
    if row.share is None:
        return "the gap itself cannot be told from luck, so that no share of it is given"
    if row.share < 0:
        return "it does not explain the gap, as it points the other way"
    if row.share > 1:
        return "as much as the published gap, and more"
    doubt = "" if is_real(row.p) else ", which may as well be none of it"
    return f"{100 * row.share:.0f} % of the published gap{doubt}"


def _values(data: StudyData, measure: str, arms: Mapping[str, str | None]) -> dict[str, dict[int, float]]:
    """Of each name in `arms` its values of a measure."""
    known = {name: arm for name, arm in arms.items() if arm is not None}
    if measure == SCORE:
        return {name: data.scores(arm) for name, arm in known.items()}
    found = values_of(data, is_of(measure), list(dict.fromkeys(known.values())))
    return {name: found[1][arm] for name, arm in known.items() if arm in found[1]} if found else {}


def _in_shared_seeds(values: dict[str, dict[int, float]]) -> dict[str, dict[int, float]]:
    """The same for the seeds that all names have; without CLIP where it has none of those of the others."""
    others = [own.keys() for name, own in values.items() if name != "CLIP"]
    shared = set.intersection(*map(set, others)) if others else set()
    known = shared & values.get("CLIP", {}).keys()
    return {
        name: {seed: own[seed] for seed in sorted(known or shared)}
        for name, own in values.items()
        if name != "CLIP" or known
    }


def _with_init(data: StudyData, init: str) -> str | None:
    """The arm that is DiffCLIP but for its init, or that itself; None where there is none."""
    study = data.study
    wanted = study.training(study.arms[TREATED].change).model_copy(update={"init": init})
    return next((name for name, one in study.arms.items() if study.training(one.change) == wanted), None)

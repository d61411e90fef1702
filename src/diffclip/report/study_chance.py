"""What an arm of a study scores at a task, and what chance would."""

from __future__ import annotations

from dataclasses import dataclass, replace

from diffclip.evaluation.significance import over_seeds
from diffclip.report.compare import ENOUGH_SEEDS, Measure, measure_of
from diffclip.report.metrics import chance_of
from diffclip.report.series import Result
from diffclip.report.study_data import StudyData
from diffclip.report.study_pairs import Values


@dataclass(frozen=True)
class Level:
    """The mean of an arm over its seeds, the lower end of its 95 % interval (None for fewer than three seeds), and what
    chance reaches, where that is known.
    """

    mean: float
    low: float | None
    chance: float | None

    @property
    def is_chance(self) -> bool:
        """Whether the seeds cannot tell it from chance: its interval does not lie wholly above."""
        return self.chance is not None and self.low is not None and self.low <= self.chance

    @property
    def over_chance(self) -> float:
        """The mean less chance, or all of it where chance is not known."""
        return self.mean - (self.chance or 0.0)


def level_of(data: StudyData, arm: str, measure: Measure, values: Values) -> Level:
    """The level of `arm`, whose `values` in `measure` are given by seed."""
    summary = over_seeds(list(values.values()))
    low = summary.low if summary.n >= ENOUGH_SEEDS else None
    return Level(summary.mean, low, chance_level(measure, data.measured[arm].results))


def chance_level(measure: Measure, results: list[Result]) -> float | None:
    """What chance reaches: `chance_of`, or of an average over sets the mean of theirs; None where one is not known."""
    one = next((result for result in results if measure_of(result) == measure), None)
    if one is None or not one.parts:
        return chance_of(measure, results)
    parts = [
        (part.weight, chance_of(measure_of(replace(one, record=part.record, parts=())), results))
        for part in one.parts
    ]
    known = [weight * chance for weight, chance in parts if chance is not None]
    return sum(known) if len(known) == len(parts) else None

"""How far the validation scores of two equally good arms differ by the luck of training."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diffclip.evaluation.significance import ALPHA, student_quantile
from diffclip.report.study_data import StudyData

_LEAST_FREEDOM = 2
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Luck:
    """The standard deviation of a score about the sum of its arm's and its seed's effect, and the degrees of freedom
    that it was estimated with.
    """

    sd: float
    freedom: int

    def bound(self, seeds: int, differences: int = 1) -> float:
        """How far two equal arms, named beforehand, differ over the same `seeds` in 95 % of all cases (Student's t); of
        several `differences` the largest, at most (Bonferroni).
        """
        return student_quantile(self.freedom, ALPHA / differences) * self.sd * math.sqrt(2 / seeds)


def luck_of(data: StudyData) -> Luck | None:
    """From all arms in all their seeds: the residuals of an additive model of arm and seed, fitted by least squares.

    None where too few arms share seeds, or no spread was seen. Scores of one seed go up and down together, and many
    differences have CLIP in common: their own spreads are not independent, these residuals account for both.
    """
    scores = [(arm, seed, score) for arm in data.arms for seed, score in sorted(data.scores(arm).items())]
    arms = list(dict.fromkeys(arm for arm, _, _ in scores))
    seeds = list(dict.fromkeys(seed for _, seed, _ in scores))
    design = np.zeros((len(scores), len(arms) + len(seeds)))
    for row, (arm, seed, _) in enumerate(scores):
        design[row, arms.index(arm)] = design[row, len(arms) + seeds.index(seed)] = 1
    wanted = np.array([score for _, _, score in scores])
    freedom = len(scores) - (int(np.linalg.matrix_rank(design)) if scores else 0)
    if freedom < _LEAST_FREEDOM:
        return None
    residuals = wanted - design @ np.linalg.lstsq(design, wanted, rcond=None)[0]
    sd = math.sqrt(float(residuals @ residuals) / freedom)
    return Luck(sd, freedom) if sd > _ROUNDING else None

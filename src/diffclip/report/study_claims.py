"""The paper's claims, what each is measured by in a study, and whether it holds there.

A claim that one model is better holds where the difference, paired by seed, has p < 5 % after Holm's correction for all
these tests together, and does not hold where that is so in the other direction. A claim that one is at least about as
good as another, or costs hardly more, holds where the whole 95 % interval is on the good side of a margin, and does not
hold where it is on the other.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from diffclip.data.shifts import base_of
from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS
from diffclip.evaluation.significance import SeedTest
from diffclip.report.compare import ENOUGH_SEEDS, Measure
from diffclip.report.focus_metrics import FOCUS
from diffclip.report.metrics import dataset_name, measure_name, metric_name
from diffclip.report.sets import set_name, sets_of
from diffclip.report.study_data import StudyData, mean_of
from diffclip.report.study_pairs import corrected, is_real, paired, values_of
from diffclip.report.study_paper import FOCUSED, PAIRS, PARAMETERS, TIME
from diffclip.study.recipe import BASELINE, TREATED

DYNAMIC, VISION = "DiffCLIP-dynamic", "DiffCLIP-vision"
CLOSE = 0.05
"""A score is about as good as another where it is lower by no more than this share of that."""
FEW_PARAMETERS, LITTLE_TIME = 0.001, 0.05
"""The shares of parameters and of time a step that are hardly more."""

Word = Literal["holds", "does not hold", "cannot be told"]
HOLDS: Word = "holds"
FAILS: Word = "does not hold"
OPEN: Word = "cannot be told"
Kind = Literal["better", "as good", "parameters", "time"]


@dataclass(frozen=True)
class Claim:
    """That `treated` is better than `baseline` at a task, at least about as good, or costs hardly more."""

    kind: Kind
    treated: str
    baseline: str
    task: str

    @property
    def words(self) -> str:
        """Without the task: "DiffCLIP better than CLIP"."""
        relation = {
            "better": f"better than {self.baseline}",
            "as good": f"at least about as good as {self.baseline}",
            "parameters": f"with hardly more parameters than {self.baseline}",
            "time": f"with hardly more time a step than {self.baseline}",
        }
        return f"{self.treated} {relation[self.kind]}"


@dataclass(frozen=True)
class Judged:
    """A claim with what was measured: `treated` − `baseline`, of costs as a share of the baseline's.

    `p` is corrected; None where nothing was tested. `margin` is that of a claim that is no test.
    """

    claim: Claim
    measure: str
    test: SeedTest
    p: float | None
    margin: float | None
    word: Word

    @property
    def seeds(self) -> int:
        return self.test.difference.n


CLAIMS: tuple[Claim, ...] = (
    *(
        Claim("better", TREATED, BASELINE, task)
        for task in ("image retrieval", "text retrieval", "linear probing", "few-shot", "zero-shot")
    ),
    *(Claim("better", TREATED, BASELINE, task) for task in ("out of domain", PAIRS, FOCUSED)),
    *(Claim("better", DYNAMIC, BASELINE, task) for task in ("text retrieval", "zero-shot", "out of domain")),
    *(Claim("better", DYNAMIC, TREATED, task) for task in ("text retrieval", "zero-shot")),
    *(Claim("as good", VISION, TREATED, task) for task in PANELS),
    Claim("parameters", TREATED, BASELINE, PARAMETERS),
    Claim("time", TREATED, BASELINE, TIME),
)
"""Abstract and Sections 4.2 to 4.6; of DiffCLIP-dynamic what Section 4.5 says that it gains at."""


def is_of(task: str) -> Callable[[Measure], bool]:
    """Which measures tell of a task: the averages of the paper's panels, pairs of MMVP, relevance on the object."""
    if task == PAIRS:
        return lambda measure: (measure.task, measure.metric) == ("mmvp", "pair_accuracy")
    if task == FOCUSED:
        return lambda measure: (measure.task, measure.metric) == (FOCUS, "relevance_auroc")
    return lambda measure: (measure.task, measure.dataset, measure.metric) == (SIX_TASKS, task, AVERAGE)


def judged_claims(data: StudyData) -> list[Judged]:
    """Every claim that the study has numbers for, judged."""
    found = [one for claim in CLAIMS if (one := _measured(data, claim)) is not None]
    tested = [one for one in found if one.claim.kind == "better"]
    ps = dict(zip([one.claim for one in tested], corrected([one.test for one in tested]), strict=True))
    return [
        replace(
            one, p=ps.get(one.claim), word=judge_of(one.claim.kind, one.test, ps.get(one.claim), one.margin)
        )
        for one in found
    ]


def not_measured(data: StudyData) -> list[Claim]:
    """The claims that the study has no numbers for, as yet or at all."""
    known = {one.claim for one in judged_claims(data)}
    return [claim for claim in CLAIMS if claim not in known]


def judge_of(kind: Kind, test: SeedTest, p: float | None, margin: float | None) -> Word:
    """What may be said of a claim: `p` is the corrected one, `margin` that of a claim that is no test."""
    mean, low, high = test.difference.mean, test.difference.low, test.difference.high
    if kind == "better":
        return OPEN if not is_real(p) else HOLDS if mean > 0 else FAILS
    if margin is None:
        return OPEN
    if kind == "parameters":
        # counted, not estimated: a single run tells
        return HOLDS if mean <= margin else FAILS
    if low is None or high is None:
        return OPEN
    if kind == "time":
        return HOLDS if high < margin else FAILS if low > margin else OPEN
    return HOLDS if low > -margin else FAILS if high < -margin else OPEN


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


def _measured(data: StudyData, claim: Claim) -> Judged | None:
    if claim.kind in ("parameters", "time"):
        return _cost(data, claim)
    found = values_of(data, is_of(claim.task), [claim.treated, claim.baseline])
    if found is None or not {claim.treated, claim.baseline} <= found[1].keys():
        return None
    measure, values = found
    test = paired(values[claim.treated], values[claim.baseline])
    level = mean_of(values[claim.baseline])
    if test is None or level is None:
        return None
    margin = CLOSE * level if claim.kind == "as good" else None
    return Judged(claim, measure_text(measure), test, None, margin, OPEN)


def _cost(data: StudyData, claim: Claim) -> Judged | None:
    key, margin = {"parameters": ("parameters", FEW_PARAMETERS), "time": ("step_seconds", LITTLE_TIME)}[
        claim.kind
    ]
    test = more_of(data, key, claim.treated, claim.baseline)
    if test is None:
        return None
    words = {"parameters": "parameters", "time": "median seconds a training step"}[claim.kind]
    if claim.kind == "time" and data.told("side_by_side", [claim.treated, claim.baseline]) != ["1"]:
        return Judged(claim, words, test, None, None, OPEN)  # what runs beside a run takes of its time
    return Judged(claim, words, test, None, margin, OPEN)


def more_of(data: StudyData, key: str, treated: str, baseline: str) -> SeedTest | None:
    """How much more of a cost an arm has, as a share of the baseline's, seed by seed."""
    own, other = data.costs(treated, key), data.costs(baseline, key)
    shares = {seed: own[seed] / other[seed] - 1 for seed in own.keys() & other.keys() if other[seed] > 0}
    return paired(shares, dict.fromkeys(shares, 0.0))


def enough(judged: list[Judged]) -> bool:
    """Whether any claim was measured with as many seeds as it takes to tell anything."""
    return any(one.seeds >= ENOUGH_SEEDS for one in judged)

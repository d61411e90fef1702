"""The paper's claims, what each is measured by in a study, and whether it holds there.

A claim that one model is better holds where the difference, paired by seed, has p < 5 % after Holm's correction for all
these tests together, and does not hold where that is so in the other direction. A claim that one is at least about as
good as another, or costs hardly more, holds where the whole 95 % interval is on the good side of a margin, and does not
hold where it is on the other. Where the other model is at chance, a claim to be as good says nothing, and one to be
better needs a model that is not at chance itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from diffclip.evaluation.averages import AVERAGE, PANELS, SIX_TASKS
from diffclip.evaluation.significance import SeedSummary, SeedTest
from diffclip.report.compare import ENOUGH_SEEDS, Measure
from diffclip.report.focus_metrics import FOCUS
from diffclip.report.study_chance import Level, level_of
from diffclip.report.study_data import StudyData
from diffclip.report.study_expense import more_of
from diffclip.report.study_pairs import corrected, is_real, paired, values_of
from diffclip.report.study_paper import FOCUSED, PAIRS, PARAMETERS, TIME
from diffclip.study.recipe import BASELINE, TREATED

DYNAMIC, VISION = "DiffCLIP-dynamic", "DiffCLIP-vision"
CLOSE = 0.05
"""A score is about as good as another where it is lower by no more than this share of what that is above chance."""
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

    `measure` and the levels of both are of scores alone. `p` is corrected; None where nothing was tested. `margin` is
    that of a claim that is no test.
    """

    claim: Claim
    test: SeedTest
    margin: float | None = None
    measure: Measure | None = None
    own: Level | None = None
    other: Level | None = None
    p: float | None = None
    word: Word = OPEN

    @property
    def seeds(self) -> int:
        """How many training seeds it is over; none for a time, which is over rounds."""
        return 0 if self.claim.kind == "time" else self.test.difference.n

    @property
    def at_chance(self) -> bool:
        """Whether the score that is compared with cannot be told from chance."""
        return self.other is not None and self.other.is_chance

    @property
    def decidable(self) -> bool:
        """Whether it may be judged: where the other is at chance, only to be better, by one that is not."""
        better = self.claim.kind == "better" and self.own is not None and not self.own.is_chance
        return better or not self.at_chance


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
    found = [replace(one, p=ps.get(one.claim)) for one in found]
    return [replace(one, word=judge_of(one) if one.decidable else OPEN) for one in found]


def not_measured(data: StudyData) -> list[Claim]:
    """The claims that the study has no numbers for, as yet or at all."""
    known = {one.claim for one in judged_claims(data)}
    return [claim for claim in CLAIMS if claim not in known]


def judge_of(one: Judged) -> Word:
    """What its test, corrected p and margin say of a claim about scores above chance, or about a cost."""
    mean, low, high = one.test.difference.mean, one.test.difference.low, one.test.difference.high
    kind, margin = one.claim.kind, one.margin
    if kind == "better":
        return OPEN if not is_real(one.p) else HOLDS if mean > 0 else FAILS
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


def enough(judged: list[Judged]) -> bool:
    """Whether any claim was measured with as many seeds as it takes to tell anything."""
    return any(one.seeds >= ENOUGH_SEEDS for one in judged)


def _measured(data: StudyData, claim: Claim) -> Judged | None:
    if claim.kind == "time":
        return _time(data, claim)
    if claim.kind == "parameters":
        test = more_of(data, "parameters", claim.treated, claim.baseline)
        return None if test is None else Judged(claim, test, FEW_PARAMETERS)
    found = values_of(data, is_of(claim.task), [claim.treated, claim.baseline])
    if found is None or not {claim.treated, claim.baseline} <= found[1].keys():
        return None
    measure, values = found
    test = paired(values[claim.treated], values[claim.baseline])
    if test is None:
        return None
    own, other = (level_of(data, arm, measure, values[arm]) for arm in (claim.treated, claim.baseline))
    margin = CLOSE * other.over_chance if claim.kind == "as good" and other.over_chance > 0 else None
    return Judged(claim, test, margin, measure, own, other)


def _time(data: StudyData, claim: Claim) -> Judged | None:
    """From the times that were measured alone; the interval is over rounds."""
    own = data.timing.arms.get(claim.treated) if data.timing else None
    if own is None or data.timing is None:
        return None
    more = SeedSummary(data.timing.rounds, own.ratio - 1, None, own.low - 1, own.high - 1)
    return Judged(claim, SeedTest(more, None, None), LITTLE_TIME)

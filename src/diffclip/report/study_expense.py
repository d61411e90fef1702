"""What a training step of each arm takes, as `timing.json` has it: measured alone, arms in turns."""

from __future__ import annotations

from diffclip.evaluation.significance import SeedTest
from diffclip.report.study_data import StudyData
from diffclip.report.study_pairs import NONE, paired
from diffclip.study.recipe import BASELINE

NOT_TIMED = "Time a step has not been measured alone, so that nothing is said of it."


def milliseconds_text(data: StudyData, arm: str) -> str:
    """ "479.4", or a dash."""
    own = data.timing.arms.get(arm) if data.timing else None
    return f"{own.milliseconds:,.1f}" if own else NONE


def ratio_text(data: StudyData, arm: str) -> str:
    """How many times CLIP's a step takes: "1.10 [1.08, 1.12]", or a dash."""
    own = data.timing.arms.get(arm) if data.timing else None
    if own is None:
        return NONE
    return f"{own.ratio:.2f}" if arm == BASELINE else f"{own.ratio:.2f} [{own.low:.2f}, {own.high:.2f}]"


def time_note(data: StudyData, brief: bool = False) -> str:
    """How the times were measured, or that they were not; `brief` leaves all but the interval to the table of costs."""
    own = data.timing
    if own is None:
        return NOT_TIMED
    if brief:
        return "Time a step: measured alone, see the cost; 95 % interval over rounds."
    threads = f"{own.threads} thread{'s' * (own.threads != 1)}"
    return (
        "Time a step: measured after all runs, in one process that had the machine for itself, arms in turns; medians "
        f"over {own.rounds} rounds, of the ratio with its 95 % interval over rounds. Batches of {own.batch_size}, "
        f"{own.device}, {threads}, torch {own.torch}."
    )


def cost_words(data: StudyData, arm: str) -> str:
    """ " with 0.02 % more parameters than CLIP and 1.05 [1.03, 1.07] times its time a step"; empty of CLIP itself."""
    more = more_of(data, "parameters", arm, BASELINE)
    if arm == BASELINE or more is None:
        return ""
    share = more.difference.mean
    parameters = (
        "as many parameters as CLIP"
        if share == 0
        else f"{100 * abs(share):.2g} % {'more' if share > 0 else 'fewer'} parameters than CLIP"
    )
    ratio = ratio_text(data, arm)
    return f" with {parameters}" + (f" and {ratio} times its time a step" if ratio != NONE else "")


def more_of(data: StudyData, key: str, treated: str, baseline: str) -> SeedTest | None:
    """How much more of a cost an arm has, as a share of the baseline's, seed by seed."""
    own, other = data.costs(treated, key), data.costs(baseline, key)
    shares = {seed: own[seed] / other[seed] - 1 for seed in own.keys() & other.keys() if other[seed] > 0}
    return paired(shares, dict.fromkeys(shares, 0.0))

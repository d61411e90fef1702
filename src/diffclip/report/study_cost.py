"""What each model cost: parameters, time a step, memory and time of training, and the loss it ended with."""

from __future__ import annotations

import statistics

from diffclip.report.study_ablations import side_by_side_note
from diffclip.report.study_claims import more_of
from diffclip.report.study_data import StudyData, mean_of
from diffclip.report.study_pairs import NONE, enumerated, signed
from diffclip.report.tables import Row, Table
from diffclip.study.recipe import BASELINE

_MEBI = 2**20


def cost_table(data: StudyData) -> Table | None:
    """A row for each arm of the models that is finished in a seed; None where there is none."""
    arms = [arm for arm in data.study.models.arms if arm in data.arms]
    if not arms:
        return None
    rows = [
        Row(
            "one",
            [
                arm,
                _parameters(data, arm) + _relative(data, "parameters", arm, 3),
                _number(data, "step_seconds", arm, 1000, 1) + _relative(data, "step_seconds", arm, 1),
                _number(data, "peak_memory", arm, 1 / _MEBI, 0) + _relative(data, "peak_memory", arm, 1),
                _number(data, "seconds", arm, 1, 0) + _relative(data, "seconds", arm, 1),
                _loss(data, arm),
                str(len(data.arms[arm])),
            ],
        )
        for arm in arms
    ]
    memory = enumerated(data.told("memory_of", arms))
    runs = sum(len(data.arms[arm]) for arm in arms)
    known = sum(len(data.costs(arm, "peak_memory")) for arm in arms)
    made_with = ", ".join(
        f"{name} {enumerated(told)}" for name in ("torch", "threads") if (told := data.told(name, arms))
    )
    notes = [
        "Means over seeds; in parentheses how much more than CLIP, paired by seed.",
        "Time a step: the median of a run. Training: from the first to the last step with validations, wall clock.",
        f"Memory: the highest of the {memory}{'' if known == runs else f', known of {known} of the {runs} runs'}."
        if memory and known
        else "Memory was not watched in these runs.",
        "Loss: of training, mean over the last epoch.",
        side_by_side_note(data, arms),
        f"{made_with}." if made_with else "",
    ]
    return Table(
        title="Cost by model",
        columns=[
            *("model", "parameters", "time a step (ms)", "peak memory (MiB)"),
            *("training (s)", "training loss", "seeds"),
        ],
        rows=rows,
        notes=[note for note in notes if note],
    )


def _parameters(data: StudyData, arm: str) -> str:
    found = data.costs(arm, "parameters")
    return f"{min(found.values()):,.0f}" if found else NONE


def _number(data: StudyData, key: str, arm: str, factor: float, places: int) -> str:
    mean = mean_of(data.costs(arm, key))
    return NONE if mean is None else f"{factor * mean:,.{places}f}"


def _relative(data: StudyData, key: str, arm: str, places: int) -> str:
    if arm == BASELINE:
        return ""
    test = more_of(data, key, arm, BASELINE)
    return "" if test is None else f" ({signed(test.difference.mean, places)} %)"


def _loss(data: StudyData, arm: str) -> str:
    losses = [one.last_loss for one in data.arms[arm].values()]
    known = [loss for loss in losses if loss is not None]
    return f"{statistics.fmean(known):.3f}" if known else NONE

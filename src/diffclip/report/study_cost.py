"""What each model cost: parameters, time a step, memory and time of training, and the loss it ended with.

Ratios of times are of what was measured alone (`timing.json`); runs that went side by side slow each other down.
"""

from __future__ import annotations

import statistics

from diffclip.report.study_data import StudyData, mean_of
from diffclip.report.study_expense import milliseconds_text, more_of, ratio_text, time_note
from diffclip.report.study_pairs import NONE, enumerated, signed
from diffclip.report.tables import Row, Table
from diffclip.study.recipe import BASELINE

_MEBI = 2**20


def cost_table(data: StudyData) -> Table | None:
    """A row for each arm of the models that is finished in a seed; None where there is none."""
    arms = [arm for arm in data.study.models.arms if arm in data.arms]
    if not arms:
        return None
    timed = ["time a step (ms)", "÷ CLIP's"] if data.timing else []
    rows = [
        Row(
            "one",
            [
                arm,
                _parameters(data, arm) + _relative(data, "parameters", arm, 3),
                *([milliseconds_text(data, arm), ratio_text(data, arm)] if timed else []),
                _memory(data, arm),
                _number(data, "seconds", arm, 1, 0),
                _loss(data, arm),
                str(len(data.arms[arm])),
            ],
        )
        for arm in arms
    ]
    notes = [
        "Means over seeds; in parentheses how much more than CLIP, paired by seed.",
        time_note(data),
        _memory_note(data, arms),
        "Loss: of training, mean over the last epoch.",
        _training_note(data, arms),
    ]
    return Table(
        title="Cost by model",
        columns=[
            "model",
            "parameters",
            *timed,
            "peak memory (MiB)",
            "training (s)",
            "training loss",
            "seeds",
        ],
        rows=rows,
        notes=[note for note in notes if note],
    )


def _memory(data: StudyData, arm: str) -> str:
    """As measured alone, where that tells of all models; else in the runs."""
    if not _memory_alone(data):
        return _number(data, "peak_memory", arm, 1 / _MEBI, 0) + _relative(data, "peak_memory", arm, 1)
    alone, clip = _memory_alone(data).get(arm), _memory_alone(data).get(BASELINE)
    if alone is None:
        return NONE
    more = f" ({signed(alone / clip - 1)} %)" if clip and arm != BASELINE else ""
    return f"{alone / _MEBI:,.0f}{more}"


def _memory_alone(data: StudyData) -> dict[str, int]:
    """The bytes by arm that were measured with the times; empty where that was not on a GPU."""
    own = data.timing.arms if data.timing else {}
    return {arm: one.peak_memory for arm, one in own.items() if one.peak_memory is not None}


def _memory_note(data: StudyData, arms: list[str]) -> str:
    if _memory_alone(data):
        return "Memory: the highest of the GPU, measured with the time a step."
    memory = enumerated(data.told("memory_of", arms))
    runs = sum(len(data.arms[arm]) for arm in arms)
    known = sum(len(data.costs(arm, "peak_memory")) for arm in arms)
    if not memory or not known:
        return "Memory was not watched in these runs."
    return f"Memory: the highest of the {memory}{'' if known == runs else f', known of {known} of the {runs} runs'}."


def _training_note(data: StudyData, arms: list[str]) -> str:
    """What the seconds of training are, and why they are not to be compared."""
    devices, beside = data.told("device", arms), data.told("side_by_side", arms)
    made_with = [
        f"{name} {enumerated(told)}" for name in ("threads", "torch") if (told := data.told(name, arms))
    ]
    rough = (
        f"; {' or '.join(beside)} runs went side by side, so that these seconds are rough and say nothing of a model"
        if any(number != "1" for number in beside)
        else ""
    )
    where = f" ({', '.join([*devices, *made_with])})" if devices or made_with else ""
    return f"Training: from the first to the last step with validations, wall clock{where}{rough}."


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

"""The sweep of learning rate and weight decay: a table a swept model, and whether its choice is at an edge."""

from __future__ import annotations

from diffclip.report.study_ablations import SCORE_MEANING
from diffclip.report.study_data import StudyData
from diffclip.report.study_pairs import NONE
from diffclip.report.tables import Row, Table
from diffclip.study.plan import Settings
from diffclip.study.recipe import BASELINE, TREATED


def sweep_tables(data: StudyData) -> list[Table]:
    """Learning rates down, weight decays across, the chosen score between two asterisks each side."""
    sweep = data.study.sweep
    if sweep is None or all(trial.score is None for trial in data.trials):
        return []
    tables = []
    for arm in (BASELINE, TREATED):
        scores = {trial.settings: trial.score for trial in data.trials if trial.arm == arm}
        rows = [
            Row(
                "one",
                [f"{lr:g}", *(_cell(data, arm, scores, Settings(lr, decay)) for decay in sweep.weight_decay)],
            )
            for lr in sweep.lr
        ]
        columns = ["learning rate", *(f"weight decay {decay:g}" for decay in sweep.weight_decay)]
        tables.append(Table(f"{arm}: validation score (%)", columns, rows, _notes(data, arm)))
    return tables


def edge_warnings(data: StudyData) -> list[str]:
    """A sentence for each chosen value at the edge of what was tried."""
    sweep = data.study.sweep
    if sweep is None:
        return []
    found = []
    for arm, settings in data.chosen.items():
        for name, value, tried in (
            ("learning rate", settings.lr, sweep.lr),
            ("weight decay", settings.weight_decay, sweep.weight_decay),
        ):
            if len(set(tried)) > 1 and value in (min(tried), max(tried)):
                way = ("smallest", "smaller") if value == min(tried) else ("largest", "larger")
                found.append(
                    f"{arm}'s {name} of {value:g} is the {way[0]} that was tried: a {way[1]} one may do better."
                )
    return found


def sweep_intro(data: StudyData) -> str:
    """What the sweep is, in sentences; that there was none where there was none."""
    sweep = data.study.sweep
    if sweep is None:
        return "No sweep: all models were trained with the settings of the recipe, which may suit one better."
    text = (
        f"{SCORE_MEANING}. One seed each ({sweep.seed}), which no other run has, so that what is reported was not "
        "chosen by its own numbers; one seed cannot tell close settings apart. "
    )
    if not data.chosen:
        return f"{text}The sweep is not finished: nothing is chosen yet."
    chosen = " and ".join(
        f"{arm} learning rate {one.lr:g} with weight decay {one.weight_decay:g}"
        for arm, one in data.chosen.items()
    )
    return (
        f"{text}Chosen (bold; of equal scores the first): {chosen}. Arms without differential attention take CLIP's, "
        "all others DiffCLIP's, and were not swept themselves."
    )


def _cell(data: StudyData, arm: str, scores: dict[Settings, float | None], settings: Settings) -> str:
    score = scores.get(settings)
    if score is None:
        return NONE
    text = f"{100 * score:.2f}"
    return f"**{text}**" if data.chosen.get(arm) == settings else text


def _notes(data: StudyData, arm: str) -> list[str]:
    return [warning for warning in edge_warnings(data) if warning.startswith(f"{arm}'s ")]

"""The sweep of learning rate and weight decay: its scores, what each model gains by settings of its own, the choice."""

from __future__ import annotations

from diffclip.report.study_ablations import SCORE_MEANING
from diffclip.report.study_data import StudyData
from diffclip.report.study_luck import luck_of
from diffclip.report.study_pairs import NONE, enumerated, signed
from diffclip.report.tables import Row, Table
from diffclip.study.choose import DIVERGED
from diffclip.study.plan import Settings
from diffclip.study.recipe import BASELINE, TREATED


def sweep_table(data: StudyData) -> Table | None:
    """Learning rates down, each model's weight decays across, its chosen score between two asterisks each side, and the
    difference of the models at one learning rate. None without a sweep.
    """
    sweep = data.study.sweep
    if sweep is None or all(trial.score is None for trial in data.trials):
        return None
    arms = (BASELINE, TREATED)
    differences = at_one_rate(data)
    rows = [
        Row(
            "one",
            [
                f"{lr:g}",
                *(_cell(data, arm, Settings(lr, decay)) for arm in arms for decay in sweep.weight_decay),
                signed(differences[lr], 2) if lr in differences else NONE,
            ],
        )
        for lr in sweep.lr
    ]
    columns = [f"{arm}, weight decay {decay:g}" for arm in arms for decay in sweep.weight_decay]
    difference = f"{TREATED} − {BASELINE}"
    notes = [
        f"{difference}: in points, each at its better weight decay there."
        if len(sweep.weight_decay) > 1
        else f"{difference}: in points.",
        "The chosen score of each model is in bold.",
        *edge_warnings(data),
    ]
    return Table("Sweep: validation score (%)", ["learning rate", *columns, difference], rows, notes)


def at_one_rate(data: StudyData) -> dict[float, float]:
    """DiffCLIP − CLIP at each learning rate that both were trained with, each at its best weight decay there."""
    best = {arm: _best_by_rate(data, arm) for arm in (BASELINE, TREATED)}
    return {lr: best[TREATED][lr] - own for lr, own in best[BASELINE].items() if lr in best[TREATED]}


def tuning_sentence(data: StudyData) -> str:
    """How the models differ at the same learning rate and with settings of their own, as far as one seed carries; empty
    before the sweep has chosen.
    """
    if not data.chosen:
        return ""
    same, own = at_one_rate(data), _at_their_own(data)
    told = enumerated([f"{signed(difference, 2)} at {lr:g}" for lr, difference in same.items()])
    text = (
        f"{TREATED} − {BASELINE}, in points, is {told} with the same learning rate for both" if told else ""
    )
    text = f"{text}, and " if text else f"{TREATED} − {BASELINE}, in points, is "
    text += f"{signed(own, 2)} with each model's best."
    luck = luck_of(data)
    if luck is None:
        return f"{text} All of this is from one seed, and how much of it is luck is not known."
    bound = luck.bound(1, len(same) or 1)
    beyond = [f"{lr:g}" for lr, difference in same.items() if abs(difference) > bound]
    many = (
        f"none of {len(same)} such differences between equally good models"
        if len(same) > 1
        else "no difference"
    )
    return (
        f"{text} All of this is from one seed, where, going by the later runs, luck takes {many} beyond "
        f"{100 * bound:.1f} points (19 of 20 times): "
        + (
            f"it does not explain what is seen at {enumerated(beyond)}."
            if beyond
            else "it may explain all of these."
        )
    )


def tuning_verdict(data: StudyData) -> str:
    """The same in a sentence for the verdict: at the recipe's learning rate, else the largest, and at their own."""
    same = at_one_rate(data)
    if not data.chosen or not same:
        return ""
    rate = data.study.training(data.study.arms[BASELINE].change).lr
    named = (
        f"at the recipe's learning rate of {rate:g}"
        if rate in same
        else f"at a learning rate of {max(same):g}"
    )
    both = same[rate] if rate in same else same[max(same)]
    rates = {arm: f"{data.chosen[arm].lr:g}" for arm in (BASELINE, TREATED)}
    chosen = (
        f"CLIP {rates[BASELINE]}, DiffCLIP {rates[TREATED]}"
        if len(set(rates.values())) > 1
        else f"both {rates[BASELINE]}"
    )
    luck = luck_of(data)
    carried = f", where up to {100 * luck.bound(1):.1f} points may be luck," if luck else ""
    return (
        f"Learning rates were chosen for each ({chosen}): in that sweep, of one seed{carried or ','} DiffCLIP − CLIP "
        f"is {signed(both)} points of validation score {named} for both, and {signed(_at_their_own(data))} with each "
        "model's own. "
    )


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
            # of two values each is at an edge
            if len(set(tried)) > 2 and value in (min(tried), max(tried)):
                way = ("smallest", "smaller") if value == min(tried) else ("largest", "larger")
                found.append(
                    f"{arm}'s {name} of {value:g} is the {way[0]} that was tried: a {way[1]} one may do better."
                )
    if data.chosen and len(set(sweep.weight_decay)) == 2:
        found.append("Two weight decays were tried, so that what lies beyond or between them is not known.")
    return found


def sweep_intro(data: StudyData) -> list[str]:
    """What the sweep is and what it says, in paragraphs; that there was none where there was none."""
    sweep = data.study.sweep
    if sweep is None:
        return [
            "No sweep: all models were trained with the settings of the recipe, which may suit one better."
        ]
    text = (
        f"{SCORE_MEANING}. One seed each ({sweep.seed}), which no other run has; the pictures are the same, and each "
        "run's checkpoint is its best on them. One seed cannot tell close settings apart. "
    )
    if data.hopeless:
        return [f"{text}All runs of {enumerated(data.hopeless)} diverged, so that nothing can be chosen."]
    if not data.chosen:
        return [f"{text}The sweep is not finished: nothing is chosen yet."]
    chosen = " and ".join(
        f"{arm} learning rate {one.lr:g} with weight decay {one.weight_decay:g}"
        for arm, one in data.chosen.items()
    )
    told = [f"{arm} takes {one.settings}'s" for arm, one in data.study.arms.items() if one.settings]
    return [
        tuning_sentence(data),
        f"{text}Chosen (of equal scores the first): {chosen}. Arms with plain attention take CLIP's, all "
        f"others DiffCLIP's, those with λ held at 0 among them{f', but {enumerated(told)}' if told else ''}; they were "
        "not swept themselves.",
    ]


def _at_their_own(data: StudyData) -> float:
    """DiffCLIP − CLIP, each with the settings that were chosen for it."""
    best = {arm: max(_best_by_rate(data, arm).values()) for arm in (BASELINE, TREATED)}
    return best[TREATED] - best[BASELINE]


def _best_by_rate(data: StudyData, arm: str) -> dict[float, float]:
    """The best score of an arm at each learning rate that is finished there, over its weight decays; without the rates
    where every run diverged.
    """
    found: dict[float, list[float | None]] = {}
    for trial in data.trials:
        if trial.arm == arm:
            found.setdefault(trial.settings.lr, []).append(trial.score)
    whole = {
        lr: [one for one in scores if one is not None] for lr, scores in found.items() if None not in scores
    }
    best = {lr: max(scores) for lr, scores in whole.items()}
    return {lr: score for lr, score in best.items() if score != DIVERGED}


def _cell(data: StudyData, arm: str, settings: Settings) -> str:
    fitting = (one.score for one in data.trials if (one.arm, one.settings) == (arm, settings))
    score = next(fitting, None)
    if score is None:
        return NONE
    if score == DIVERGED:
        return "diverged"
    text = f"{100 * score:.2f}"
    return f"**{text}**" if data.chosen.get(arm) == settings else text

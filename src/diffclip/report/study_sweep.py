"""The sweep of learning rate and weight decay: its scores, what each model gains by settings of its own, the choice."""

from __future__ import annotations

from diffclip.report.study_ablations import SCORE_MEANING
from diffclip.report.study_data import StudyData
from diffclip.report.study_pairs import NONE, enumerated, luck_of, signed
from diffclip.report.tables import Row, Table
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
    """How the models differ at the same learning rate and with settings of their own; empty before the sweep ends."""
    if not data.chosen:
        return ""
    same = at_one_rate(data)
    best = {arm: _best_by_rate(data, arm) for arm in (BASELINE, TREATED)}
    own = max(best[TREATED].values()) - max(best[BASELINE].values())
    told = enumerated([f"{signed(difference, 2)} at {lr:g}" for lr, difference in same.items()])
    rate = data.study.training(data.study.arms[BASELINE].change).lr
    text = (
        f"At one and the same learning rate, DiffCLIP − CLIP is {told} (points); each at its own best "
        f"{signed(own, 2)}."
    )
    if rate in same:
        gains = {arm: max(best[arm].values()) - best[arm][rate] for arm in best}
        text += (
            f" With a learning rate of its own instead of the recipe's {rate:g}, CLIP gains "
            f"{100 * gains[BASELINE]:.2f} points and DiffCLIP {100 * gains[TREATED]:.2f}."
        )
    luck = luck_of(data, 1)
    bound = "a few tenths" if luck is None else f"up to {100 * luck:.1f} points, going by the later runs,"
    return f"{text} All of this is from one seed, where {bound} may be luck."


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
    own = max(_best_by_rate(data, TREATED).values()) - max(_best_by_rate(data, BASELINE).values())
    rates = {arm: f"{data.chosen[arm].lr:g}" for arm in (BASELINE, TREATED)}
    chosen = (
        f"CLIP {rates[BASELINE]}, DiffCLIP {rates[TREATED]}"
        if len(set(rates.values())) > 1
        else f"both {rates[BASELINE]}"
    )
    return (
        f"Learning rates were chosen for each ({chosen}): in that sweep, of one seed, DiffCLIP − CLIP is "
        f"{signed(both)} points of validation score {named} for both, and {signed(own)} with each model's own. "
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
        f"{SCORE_MEANING}. One seed each ({sweep.seed}), which no other run has, so that what is reported was not "
        "chosen by its own numbers; one seed cannot tell close settings apart. "
    )
    if not data.chosen:
        return [f"{text}The sweep is not finished: nothing is chosen yet."]
    chosen = " and ".join(
        f"{arm} learning rate {one.lr:g} with weight decay {one.weight_decay:g}"
        for arm, one in data.chosen.items()
    )
    return [
        tuning_sentence(data),
        f"{text}Chosen (of equal scores the first): {chosen}. Arms with plain attention take CLIP's, all "
        "others DiffCLIP's, those with λ held at 0 among them; they were not swept themselves.",
    ]


def _best_by_rate(data: StudyData, arm: str) -> dict[float, float]:
    """The best score of an arm at each learning rate that is finished there, over its weight decays."""
    found: dict[float, list[float | None]] = {}
    for trial in data.trials:
        if trial.arm == arm:
            found.setdefault(trial.settings.lr, []).append(trial.score)
    whole = {
        lr: [one for one in scores if one is not None] for lr, scores in found.items() if None not in scores
    }
    return {lr: max(scores) for lr, scores in whole.items()}


def _cell(data: StudyData, arm: str, settings: Settings) -> str:
    fitting = (one.score for one in data.trials if (one.arm, one.settings) == (arm, settings))
    score = next(fitting, None)
    if score is None:
        return NONE
    text = f"{100 * score:.2f}"
    return f"**{text}**" if data.chosen.get(arm) == settings else text

"""What must be said of answers to yes/no questions before any number of them is read."""

from __future__ import annotations

from collections.abc import Mapping

from diffclip.evaluation.pope_names import OVERALL, UNCLEAR, one_answer
from diffclip.report.paper import paper_numbers


def heedless(name: str, yes_ratios: Mapping[str, float]) -> str | None:
    """A line for a model (`name`) whose answers are nearly all the same in some split; None for one that says both."""
    found: dict[str, dict[str, float]] = {}
    for split, ratio in _splits(yes_ratios).items():
        answer = one_answer(ratio)
        if answer:
            found.setdefault(answer, {})[split] = ratio if answer == "yes" else 1 - ratio
    if not found:
        return None
    parts = [f"{_range(own)} of its answers are {answer} ({', '.join(own)})" for answer, own in found.items()]
    return f"{name} is not answering the questions: {' and '.join(parts)}, whatever is asked."


def vague(name: str, unclear_ratios: Mapping[str, float]) -> str | None:
    """A line for a model many of whose answers are not plainly yes or no; None for one that speaks plainly."""
    found = {split: ratio for split, ratio in _splits(unclear_ratios).items() if ratio > UNCLEAR}
    if not found:
        return None
    return (
        f"{_range(found)} of what {name} says is not plainly yes or no ({', '.join(found)}); the published parser "
        "takes such answers for yes unless a word of their first sentence is No, not or no."
    )


def paper_line() -> str:
    """How often the paper's own models say yes."""
    numbers = paper_numbers()["answers"]
    ratios = {}
    for row in numbers["rows"]:
        questions, yes = numbers["counts"][row["split"]]
        # of all questions, yes · recall are right yeses, and precision is their share of all yeses
        ratios[f"{row['model']} {row['split']}"] = yes / questions * row["recall"] / row["precision"]
    return (
        f"In the paper's own {numbers['source']}, {_range(ratios)} of the answers are yes, as follows from its "
        "accuracy, precision and recall."
    )


def _splits(ratios: Mapping[str, float]) -> Mapping[str, float]:
    """Without the mean, unless it is all there is."""
    return {split: ratio for split, ratio in ratios.items() if split != OVERALL or len(ratios) == 1}


def _range(ratios: Mapping[str, float]) -> str:
    low, high = (f"{100 * end:.1f}" for end in (min(ratios.values()), max(ratios.values())))
    return f"{low} %" if low == high else f"{low} to {high} %"

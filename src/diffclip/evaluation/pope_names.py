"""What POPE's numbers are called, what their protocol says, and what an answer that ignores the question reaches."""

from __future__ import annotations

import re
from collections.abc import Sequence

POPE = "pope"
SPLITS = ("random", "popular", "adversarial")
OVERALL = "overall"
"""The mean of the three, as a split of its own."""
METRICS = ("accuracy", "precision", "recall", "f1", "yes_ratio", "unclear_ratio")

ONE_ANSWER = 0.95
"""A model that says yes more often than this, or no, is not answering."""
UNCLEAR = 0.05
"""More answers than this that are not plainly yes or no are worth a line."""

_BLIND = "asked without the picture"
_COUNTS = re.compile(r"(\d+) questions about (\d+) pictures, (\d+) of them yes")


def method(
    questions: int, pictures: int, yes: int, digest: str, tokens: int, blind: bool, of: str = ""
) -> str:
    """The protocol of numbers over so many questions, of which `digest` tells which; `of` stands before all of it."""
    return (
        f"{of}{questions} questions about {pictures} pictures, {yes} of them yes ({digest}); "
        f"{f'{_BLIND}, ' if blind else ''}as they stand, greedy, up to {tokens} tokens; "
        "an answer is yes unless its first sentence has the word No, not or no"
    )


def is_blind(protocol: str) -> bool:
    """Whether the questions were asked without the picture."""
    return _BLIND in protocol


def sees(protocol: str) -> str:
    """The protocol of the same questions with the picture."""
    return protocol.replace(f"{_BLIND}, ", "")


def counts_of(protocol: str) -> tuple[int, int] | None:
    """How many questions there were, and how many have the answer yes; None where a protocol does not say."""
    found = _COUNTS.search(protocol)
    return (int(found[1]), int(found[3])) if found else None


def majority(questions: int, yes: int) -> tuple[str, dict[str, float]]:
    """The more frequent answer (yes where both are as frequent), and what it reaches given to every question."""
    share = yes / questions
    if 2 * yes < questions:
        return "no", dict.fromkeys(METRICS, 0.0) | {"accuracy": 1 - share}
    of_yes = {"precision": share, "recall": 1.0, "f1": 2 * share / (1 + share), "yes_ratio": 1.0}
    return "yes", {"accuracy": share, **of_yes, "unclear_ratio": 0.0}


def one_answer(yes_ratio: float) -> str | None:
    """The answer that nearly all are, or None where a model gives both."""
    return "yes" if yes_ratio > ONE_ANSWER else "no" if 1 - yes_ratio > ONE_ANSWER else None


def in_order(splits: Sequence[str]) -> list[str]:
    """Each split once: POPE's three, their mean, then others."""
    known = (*SPLITS, OVERALL)
    return sorted(dict.fromkeys(splits), key=lambda one: known.index(one) if one in known else len(known))

"""POPE's numbers from answers: accuracy, precision, recall, F1 (yes is positive), and how often yes was said.

Each is a ratio of sums over questions, Σ w·v / Σ w: precision of the questions that were answered yes, F1 of those with
the label yes and of those answered yes, both counted. Intervals are the bootstrap over pictures, about each of which
there are several questions. To compare two models on the same questions, a ratio m becomes an outcome a question whose
mean it is, its Taylor linearisation m + w·(v − m) / mean(w) (Cochran 1977, Sampling Techniques, Section 6.3); for plain
means these are the values themselves.

Where nothing is counted the ratio is 0, with the interval from 0 to 1: precision if no answer is yes, recall if no
label is, F1 if neither is. So it is in TinyLLaVA's evaluation; the published one divides by zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from diffclip.evaluation.scores import Result, Score
from diffclip.evaluation.statistics import mean_interval
from diffclip.vlm.pope import (
    MAX_NEW_TOKENS,
    POPE,
    SPLITS,
    QuestionFile,
    QuestionSet,
    digest,
    is_unclear,
    read_answer,
)

METRICS = ("accuracy", "precision", "recall", "f1", "yes_ratio", "unclear_ratio")
OVERALL = "overall"
"""The mean of the three splits, as a split of its own."""

_Array = NDArray[np.float64]


def results(questions: QuestionSet, answers: Mapping[str, Sequence[str]]) -> list[Result]:
    """Score each split that `answers` has, and the mean of the published three; task "pope" or "pope-blind".

    Args:
        answers: by split, one to each question of its file.
    """
    files = [file for file in questions.files if file.split in answers]
    numbers = _numbers_of(files)
    found = [
        _result(questions, file.split, file.digest, split_scores(file, answers[file.split], numbers))
        for file in files
    ]
    if [file.split for file in files] == list(SPLITS):
        scores = mean_scores([result.scores for result in found])
        found.append(_result(questions, OVERALL, digest([file.digest for file in files]), scores))
    return found


def _result(questions: QuestionSet, split: str, content: str, scores: Sequence[Score]) -> Result:
    blind = questions.images is None
    protocol = (
        f"questions {content[:8]}{', asked without the image' if blind else ''}, as they stand, greedy, up to "
        f"{MAX_NEW_TOKENS} tokens; an answer is yes unless its first sentence has the word No, not or no"
    )
    return Result(f"{POPE}-blind" if blind else POPE, questions.name, split, protocol, scores)


def split_scores(file: QuestionFile, answers: Sequence[str], numbers: Mapping[str, int]) -> list[Score]:
    """The scores of one file, in the order of `METRICS`; `numbers` are those of its pictures.

    `chance` is what the majority answer to every question reaches.
    """
    label = np.array([question.label == "yes" for question in file.questions], dtype=np.float64)
    said = np.array([read_answer(text) == "yes" for text in answers], dtype=np.float64)
    unclear = np.array([is_unclear(text) for text in answers], dtype=np.float64)
    pictures = np.array([numbers[question.image] for question in file.questions], dtype=np.int64)
    one = np.ones_like(label)
    parts = {
        "accuracy": ((label == said).astype(np.float64), one),
        "precision": (label, said),
        "recall": (said, label),
        "f1": (label * said, label + said),
        "yes_ratio": (said, one),
        "unclear_ratio": (unclear, one),
    }
    _, chance = majority(len(label), file.yes)
    scores = [_score(name, *parts[name], pictures, chance[name]) for name in METRICS]
    # F1 counts some questions twice and others not at all, and is of all of them
    return [replace(score, count=len(label)) if score.metric == "f1" else score for score in scores]


def mean_scores(splits: Sequence[Sequence[Score]]) -> list[Score]:
    """The mean of each metric over splits, whose pictures are the same and are drawn together."""
    return [_mean(scores) for scores in zip(*splits, strict=True)]


def _score(name: str, values: _Array, weights: _Array, pictures: NDArray[np.int64], chance: float) -> Score:
    count = int(weights.sum())
    if not count:
        return Score(name, 0.0, 0, 0.0, 1.0, chance, np.zeros_like(values), pictures)
    value = float((weights * values).sum() / count)
    times = weights.astype(np.int64)
    low, high = mean_interval(np.repeat(values, times), np.repeat(pictures, times))
    hits = values if np.all(weights == 1) else value + weights * (values - value) / weights.mean()
    return Score(name, value, count, low, high, chance, hits, pictures)


def _mean(scores: Sequence[Score]) -> Score:
    value = float(np.mean([one.value for one in scores]))
    outcomes = [one.hits for one in scores if one.hits is not None]
    asked = sum(map(len, outcomes))
    hits = np.concatenate(
        [
            value + asked / (len(scores) * len(own)) * (own - one.value)
            for one, own in zip(scores, outcomes, strict=True)
        ]
    )
    pictures = np.concatenate([one.clusters for one in scores if one.clusters is not None])
    low, high = mean_interval(hits, pictures)
    low, high = (0.0, 1.0) if not all(one.count for one in scores) else (max(0.0, low), min(1.0, high))
    chance = float(np.mean([one.chance or 0.0 for one in scores]))
    return replace(
        scores[0],
        value=value,
        count=sum(one.count for one in scores),
        low=low,
        high=high,
        chance=chance,
        hits=hits,
        clusters=pictures,
    )


def majority(questions: int, yes: int) -> tuple[str, dict[str, float]]:
    """Return the more frequent answer (yes where both are as frequent), and what it reaches given to every question."""
    share = yes / questions
    if 2 * yes < questions:
        return "no", dict.fromkeys(METRICS, 0.0) | {"accuracy": 1 - share}
    of_yes = {"precision": share, "recall": 1.0, "f1": 2 * share / (1 + share), "yes_ratio": 1.0}
    return "yes", {"accuracy": share, **of_yes, "unclear_ratio": 0.0}


def _numbers_of(files: Sequence[QuestionFile]) -> dict[str, int]:
    names = dict.fromkeys(name for file in files for name in file.pictures)
    return {name: number for number, name in enumerate(names)}

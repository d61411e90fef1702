"""POPE's metrics from answers: accuracy, precision, recall, F1 (yes is positive), and shares of answers.

Answers are read as the published `evaluate.py` reads them: everything is yes that has no No, not or no in its first
sentence. So an empty answer is a yes, and a model that says nothing is right about half of the questions. Answers that
are not plainly yes or no are therefore counted too (`unclear_ratio`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from diffclip.evaluation.records import Record
from diffclip.evaluation.statistics import wilson
from diffclip.vlm.chat import MAX_NEW_TOKENS
from diffclip.vlm.files import Subject
from diffclip.vlm.pope import SPLITS, Answer, Question, QuestionSet

OVERALL = "overall"
"""The mean over the three splits, as a split of its own."""
METRICS = ("accuracy", "precision", "recall", "f1", "yes_ratio", "unclear_ratio")
_WORD = re.compile(r"[a-z]+")
_RESAMPLES = 1000


class Estimate(NamedTuple):
    """A metric with its 95 % interval, and the value that the more frequent answer to every question reaches."""

    value: float
    low: float
    high: float
    chance: float


def read_answer(text: str) -> Answer:
    """Read an answer as published: no if a word before the first full stop is exactly No, not or no, else yes."""
    words = text.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "not", "no"} & set(words) else "yes"


def is_unclear(text: str) -> bool:
    """Return whether the first sentence does not plainly say, in any case, the answer that `read_answer` reads."""
    words = set(_WORD.findall(text.split(".")[0].lower()))
    yes, no = "yes" in words, bool(words & {"no", "not"})
    return yes == no or yes != (read_answer(text) == "yes")


def estimate(questions: QuestionSet, answers: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Estimate]]:
    """Estimate all metrics of each split in `answers`, and their means over the splits if all three are there.

    Each metric is a ratio of sums over questions, Σ v / Σ w. Where no question counts it is 0, with the interval from 0
    to 1: precision without an answer yes, recall without a label yes, F1 without either. TinyLLaVA does so; the
    published code divides by zero. Intervals are bootstraps over images (percentiles), each with all its questions.
    """
    names = dict.fromkeys(one.image for split in answers for one in questions.splits[split])
    numbers = {name: number for number, name in enumerate(names)}
    sums: dict[str, NDArray[np.float64]] = {}  # [images, 2, metrics]: Σ v and Σ w over an image's questions
    for split, texts in answers.items():
        asked = questions.splits[split]
        label, answered = _is_yes(asked), np.array([read_answer(text) == "yes" for text in texts], float)
        unclear, one = np.array([is_unclear(text) for text in texts], float), np.ones(len(asked))
        values = [
            label == answered,
            label * answered,
            label * answered,
            2 * label * answered,
            answered,
            unclear,
        ]
        weights = [one, answered, label, label + answered, one, one]
        sums[split] = np.zeros((len(numbers), 2, len(METRICS)))
        images = np.array([numbers[question.image] for question in asked])
        np.add.at(sums[split], images, np.stack([values, weights]).transpose(2, 0, 1))
    groups = {split: [split] for split in answers}
    groups |= {OVERALL: list(SPLITS)} if set(answers) == set(SPLITS) else {}
    count = len(numbers)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), _RESAMPLES)
    return {
        name: _estimate(
            [sums[split] for split in splits], draws, [questions.splits[split] for split in splits]
        )
        for name, splits in groups.items()
    }


def _estimate(
    sums: Sequence[NDArray[np.float64]], draws: NDArray[np.int64], asked: Sequence[Sequence[Question]]
) -> dict[str, Estimate]:
    """Estimate the mean over splits of each ratio; `draws` [r, k] resample the images."""

    def ratio(values: NDArray[np.float64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
        share: NDArray[np.float64] = values / np.maximum(weights, 1e-12)
        return share

    value = np.mean([ratio(*own.sum(axis=0)) for own in sums], axis=0)
    resampled = np.mean([ratio(draws @ own[:, 0], draws @ own[:, 1]) for own in sums], axis=0)
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0)
    # all images alike: the bootstrap says nothing about the next one
    margin = np.where(np.ptp(resampled, axis=0) < 1e-12, wilson(0, draws.shape[1])[1], 0.0)
    low, high = np.maximum(0.0, low - margin), np.minimum(1.0, high + margin)
    empty = np.any([own[:, 1].sum(axis=0) == 0 for own in sums], axis=0)
    chances = [np.mean([majority(questions)[1][metric] for questions in asked]) for metric in METRICS]
    columns = (value, np.where(empty, 0.0, low), np.where(empty, 1.0, high), chances)
    rows = zip(*columns, strict=True)
    return {metric: Estimate(*map(float, row)) for metric, row in zip(METRICS, rows, strict=True)}


def to_records(
    questions: QuestionSet, estimates: Mapping[str, Mapping[str, Estimate]], name: str, subject: Subject
) -> list[Record]:
    """Return a record of each estimate for the model `subject`, called `name`; `count` is the number of questions."""
    records = []
    for split, metrics in estimates.items():
        own = SPLITS if split == OVERALL else (split,)
        asked = [one for part in own for one in questions.splits[part]]
        protocol = (
            f"{f'mean of {chr(44).join(own)}: ' if split == OVERALL else ''}{len(asked)} questions about "
            f"{len({one.image for one in asked})} images, {int(_is_yes(asked).sum())} of them yes"
            f"{'' if questions.images else ', asked without the image'}; greedy, up to {MAX_NEW_TOKENS} tokens; an "
            "answer is yes unless its first sentence has the word No, not or no"
        )
        records += [
            Record(
                model=name,
                weights=subject.weights,
                task=questions.task,
                dataset=questions.name,
                split=split,
                metric=metric,
                count=len(asked),
                seed=subject.seed,
                protocol=protocol,
                **estimate._asdict(),
            )
            for metric, estimate in metrics.items()
        ]
    return records


def accuracy_by_question(
    questions: QuestionSet, answers: Mapping[str, Sequence[str]]
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return over all splits whether each answer [n] is right, and the number of its image [n]."""
    right = [
        float(one.label == read_answer(text))
        for split, texts in answers.items()
        for one, text in zip(questions.splits[split], texts, strict=True)
    ]
    images = [one.image for split in answers for one in questions.splits[split]]
    return np.array(right), np.unique(images, return_inverse=True)[1]


def majority(questions: Sequence[Question]) -> tuple[Answer, dict[str, float]]:
    """Return the more frequent answer (yes if both are equal), and the metrics that it reaches for every question."""
    share = float(_is_yes(questions).mean())
    if share < 0.5:
        return "no", dict.fromkeys(METRICS, 0.0) | {"accuracy": 1 - share}
    values = (share, share, 1.0, 2 * share / (1 + share), 1.0, 0.0)
    return "yes", dict(zip(METRICS, values, strict=True))


def _is_yes(questions: Sequence[Question]) -> NDArray[np.float64]:
    return np.array([one.label == "yes" for one in questions], float)

"""Answers to yes/no questions given by made models, as records and outcomes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from diffclip.evaluation.outcomes import ItemOutcomes, key_of
from diffclip.evaluation.pope_names import SPLITS
from diffclip.evaluation.records import Record
from diffclip.vlm.pope import Question, QuestionFile, QuestionSet
from diffclip.vlm.pope_scores import results

PICTURES = 60


def questions(images: bool = True, pictures: int = PICTURES) -> QuestionSet:
    """Six questions a picture, alternately answered yes and no."""
    files = [
        QuestionFile(
            split,
            [
                Question(
                    question_id=n,
                    image=f"{n // 6}.jpg",
                    text=f"Is there a {split} {n} in the picture?",
                    label="no" if n % 2 else "yes",
                )
                for n in range(6 * pictures)
            ],
        )
        for split in SPLITS
    ]
    return QuestionSet("scenes", files, Path("images") if images else None)


def pope_records(
    skills: Mapping[str, float], seeds: int = 1, blind: bool = True, words: Mapping[str, str] | None = None
) -> tuple[list[Record], dict[str, ItemOutcomes]]:
    """Records and outcomes of models that know the answer with the probability `skills` and guess otherwise.

    Without the picture all guess; a model in `words` always says that instead.
    """
    records: list[Record] = []
    outcomes: dict[str, ItemOutcomes] = {}
    for place, (model, skill) in enumerate(skills.items()):
        for seed in range(seeds):
            for seen in (True, False) if blind else (True,):
                asked = questions(images=seen)
                dice = np.random.default_rng([place, seed, seen])
                answers = {
                    file.split: [_answer(one, skill if seen else 0.0, dice) for one in file.questions]
                    for file in asked.files
                }
                if words and model in words:
                    answers = {split: [words[model]] * len(own) for split, own in answers.items()}
                for result in results(asked, answers, "weights 0123456789ab"):
                    own = result.records(
                        f"{model}-v64x4x4p8-linear-qwen2-2x64", f"runs/{model}-s{seed}/model", seed
                    )
                    records += own
                    for record, score in zip(own, result.scores, strict=True):
                        outcomes[key_of(record)] = ItemOutcomes(score.hits, score.clusters)
    return records, outcomes


def _answer(question: Question, skill: float, dice: np.random.Generator) -> str:
    knows, guess = dice.random() < skill, dice.random() < 0.5
    return ("Yes" if question.label == "yes" else "No") if knows else ("Yes" if guess else "No")

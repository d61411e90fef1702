"""POPE: ask models yes/no questions about the objects in an image (Li et al. 2023, arXiv:2305.10355), and score them.

The published folder (github.com/RUCAIBox/POPE, `output/coco`) has three question files. They differ in how the absent
objects of their questions are chosen. Answers are read as in the published `evaluate.py`: an answer is no if its first
sentence has the word No, not or no, else yes. So an empty answer is a yes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from diffclip.data.evaluation_set import FolderSource
from diffclip.data.images import read_image
from diffclip.data.workers import Progress, Showing
from diffclip.errors import InputError, explain_errors
from diffclip.evaluation.records import Record, parse_lines
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.scores import Score
from diffclip.evaluation.statistics import sums_interval
from diffclip.files import digest_of, printable
from diffclip.scenes.write import QUESTION_IMAGES
from diffclip.version import __version__
from diffclip.vlm import chat
from diffclip.vlm.files import identify, load_vlm
from diffclip.weights import weights_digest

SPLITS = ("random", "popular", "adversarial")
OVERALL = "overall"  # the mean over the three splits; records name it as a split
METRICS = ("accuracy", "precision", "recall", "f1", "yes_ratio", "neither_ratio")  # yes is the positive class
Answer = Literal["yes", "no"]


class Question(BaseModel):
    """One line of a question file; other fields, such as LLaVA's `category`, are ignored."""

    model_config = ConfigDict(frozen=True)

    question_id: int
    image: str = Field(min_length=1)
    text: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
    label: Answer


@dataclass(frozen=True)
class QuestionSet:
    """The questions of each split, and the folder of their images (None: asked without images)."""

    name: str
    splits: dict[str, list[Question]]
    images: Path | None

    @property
    def task(self) -> str:
        """The `task` in records."""
        return "pope" if self.images is not None else "pope-blind"

    @property
    def digest(self) -> str:
        """A digest of the questions and of the images' names, sizes and times, for `ResultsFile.find`."""
        questions = [question for split in self.splits.values() for question in split]
        names = sorted({question.image for question in questions})
        images = FolderSource(self.images, names).identity if self.images else ""
        return digest_of([[question.model_dump_json() for question in questions], images])


def open_questions(
    folder: str | Path, images: str | Path | None = None, name: str | None = None, blind: bool = False
) -> QuestionSet:
    """Open the questions in `folder`, which has the published layout; no image is read. A missing file, a line that is
    not a question, or missing images raise `InputError`.

    Args:
        images: folder of the images; None: `images` in `folder`, as in the built-in set.
        name: the set's name in records; None: the name of `folder`.
        blind: ask without images; the image files may then be missing.
    """
    splits = {split: _read(Path(folder, _file_name(split))) for split in SPLITS}
    image_folder = Path(folder, QUESTION_IMAGES) if images is None else Path(images)
    names = list(dict.fromkeys(question.image for questions in splits.values() for question in questions))
    missing = [] if blind else [image for image in names if not (image_folder / image).is_file()]
    if missing:
        raise InputError(
            f"{len(missing)} of the {len(names)} images of the questions are not in {image_folder}, such as "
            f"{printable(missing[0])}: give their folder with --images (COCO's is val2014)"
        )
    return QuestionSet(name or Path(folder).resolve().name, splits, None if blind else image_folder)


def _file_name(split: str) -> str:
    return f"coco_pope_{split}.json"


def _read(file: Path) -> list[Question]:
    with explain_errors(f"cannot read {file}", f"POPE has the files {', '.join(map(_file_name, SPLITS))}"):
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    questions = parse_lines(lines, Question, file, "question")
    if not questions:
        raise InputError(f"{file} has no question: fetch it again")
    return questions


def read_answer(text: str) -> Answer:
    """Read an answer as published: no if a word before the first full stop is exactly No, not or no, else yes."""
    words = text.split(".")[0].replace(",", "").split(" ")
    return "no" if {"No", "not", "no"} & set(words) else "yes"


def is_neither(text: str) -> bool:
    """Tell whether an answer says neither yes nor no; the published parser reads such an answer as yes."""
    return read_answer(text) == "yes" and not re.search(r"\byes\b", text, re.IGNORECASE)


def score_answers(questions: QuestionSet, answers: Mapping[str, Sequence[str]]) -> dict[str, list[Score]]:
    """Score the answers to all questions; return `METRICS` by split, and for `OVERALL` their means over the splits.

    Each metric is a ratio of sums over questions, Σ v / Σ w. If Σ w is 0, the metric is 0 and its interval is 0 to 1:
    precision without an answer yes, recall without a label yes, F1 without either. TinyLLaVA does the same; the
    published code divides by zero. Intervals are bootstraps over images, each with all its questions. `chance` is the
    value of a model that gives the more frequent answer of the split to every question.
    """
    items = [question for split in SPLITS for question in questions.splits[split]]
    splits = np.repeat(range(len(SPLITS)), [len(questions.splits[split]) for split in SPLITS])
    images = np.unique([question.image for question in items], return_inverse=True)[1]
    label = np.array([question.label == "yes" for question in items], float)
    texts = [text for split in SPLITS for text in answers[split]]
    predicted = np.array([read_answer(text) == "yes" for text in texts], float)
    neither = np.array([is_neither(text) for text in texts], float)
    frequent = np.array([label[splits == index].mean() >= 0.5 for index in range(len(SPLITS))], float)

    def sums(predictions: NDArray[np.float64], neither: NDArray[np.float64]) -> NDArray[np.float64]:
        """Sum v and w over the questions of each image: [images, splits, metrics, 2]."""
        ones, both = np.ones(len(label)), label * predictions
        values = [label == predictions, both, both, 2 * both, predictions, neither]
        weights = [ones, predictions, label, label + predictions, ones, ones]
        total = np.zeros((images.max() + 1, len(SPLITS), len(METRICS), 2))
        np.add.at(total, (images, splits), np.stack([values, weights]).transpose(2, 1, 0))
        return total

    model_sums, constant = sums(predicted, neither), sums(frequent[splits], np.zeros(len(label)))
    scores: dict[str, list[Score]] = {}
    for split, chosen in [*((split, [index]) for index, split in enumerate(SPLITS)), (OVERALL, [0, 1, 2])]:
        mask = np.isin(splits, chosen)
        facts = {"split": split, "protocol": _protocol(questions, split, label[mask], len(set(images[mask])))}
        scores[split] = []
        for number, metric in enumerate(METRICS):
            part = model_sums[:, chosen, number]
            low, high = sums_interval(part, _ratio) if part.sum(0)[:, 1].all() else (0.0, 1.0)
            parts = part, constant[:, chosen, number]
            value, chance = (float(_ratio(own.sum(0)[None])[0]) for own in parts)
            scores[split].append(Score(metric, value, int(mask.sum()), low, high, chance, facts))
    return scores


def _ratio(sums: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over splits of Σ v / Σ w from sums [r, splits, 2]."""
    return (sums[..., 0] / np.maximum(sums[..., 1], 1e-12)).mean(axis=1)


def _protocol(questions: QuestionSet, split: str, label: NDArray[np.float64], images: int) -> str:
    mean = f"mean of {', '.join(SPLITS)}: " if split == OVERALL else ""
    blind = "" if questions.images else ", asked without the image"
    return (
        f"{mean}{len(label)} questions about {images} images, {int(label.sum())} of them yes{blind}; greedy, up to "
        f"{chat.MAX_NEW_TOKENS} tokens; an answer is yes unless its first sentence has the word No, not or no"
    )


def evaluate_models(
    models: Sequence[str],
    questions: QuestionSet,
    results: ResultsFile,
    batch_size: int,
    device: torch.device,
    showing: Showing,
    say: Callable[[str], None] = print,
) -> list[Record]:
    """Ask each model all questions, add its scores to `results` and return the records of all models.

    `models` are runs of `diffclip vlm train`, or saved models. A model is not asked again if `results` holds its
    answers to the same questions. `InputError` is raised if a model cannot be loaded, an image cannot be read, or the
    memory is too small.
    """
    facts = {source: identify(source) for source in models}
    if len({(fields["model"], fields["seed"]) for fields in facts.values()}) < len(facts):
        facts = {source: fields | {"model": source} for source, fields in facts.items()}
    records: list[Record] = []
    for source, fields in facts.items():
        model, processor = load_vlm(source)
        weights, config = weights_digest(model), model.config.to_json_string()
        stamp = digest_of([__version__, weights, config, questions.digest])
        if results.find(f"{stamp} {OVERALL}"):
            say(f"{source}: keeping its results in {results.path}")
        else:
            model.to(device)
            with showing(source) as progress:
                answers = _ask(model, processor, questions, batch_size, progress)
            for split, scores in score_answers(questions, answers).items():
                results.add(scores, f"{stamp} {split}", task=questions.task, dataset=questions.name, **fields)
        for split in (*questions.splits, OVERALL):
            records += results.find(f"{stamp} {split}")
    return records


def _ask(
    model: object, processor: object, questions: QuestionSet, batch_size: int, progress: Progress
) -> dict[str, list[str]]:
    """Answer the questions of each split; a question that comes again about the same image is asked once."""
    folder = questions.images
    keys = {
        split: [(item.image if folder else "", item.text) for item in items]
        for split, items in questions.splits.items()
    }
    distinct = list(dict.fromkeys(key for split in keys.values() for key in split))
    answers: dict[tuple[str, str], str] = {}
    for start in range(0, len(distinct), batch_size):
        batch = distinct[start : start + batch_size]
        images = [read_image(folder / image) if folder else None for image, _ in batch]
        try:
            written = chat.answer(model, processor, images, [text for _, text in batch])
        except torch.OutOfMemoryError as error:
            advice = f"use a --batch-size below {batch_size}" if batch_size > 1 else "use --device cpu"
            raise InputError(f"out of memory: {advice}") from error
        answers |= zip(batch, written, strict=True)
        progress("questions", len(batch), len(distinct))
    return {split: [answers[key] for key in asked] for split, asked in keys.items()}

"""MMVP-VLM (which of two similar images fits a statement?) and SugarCrepe (which of two captions fits an image?).

MMVP-VLM (Tong et al. 2024, arXiv:2401.06209) is the published folder (huggingface.co/datasets/MMVP/MMVP_VLM):
`Questions.csv` and the image `MLLM_VLM Images/TYPE/ID.jpg` of each row; rows 1 and 2 are a pair, and so on. Two things
differ from the published script (tsb0601/MMVP, `scripts/evaluate_vlm.py`) on purpose: the pattern comes from the column
Type, not from the order of the rows; and a tie is wrong. `group_match` is the score of Zhu et al. (2025),
arXiv:2510.07632.

SugarCrepe (Hsieh et al. 2023, arXiv:2306.14610) follows the published script (RAIVNLab/sugar-crepe, `main_eval.py`):
captions have no template, and a tie is wrong.

Shapes: P pairs, D joint width.
"""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from diffclip.data.choices import ChoiceSet
from diffclip.data.evaluation_set import EvaluationSet, FolderSource
from diffclip.data.published_sets import PAIR_IMAGES, PATTERNS
from diffclip.errors import InputError, explain_errors, unknown_name
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.scores import Score, class_mean_score, mean_score, with_facts

CHANCE = 0.25
PROMPT = "a photo of {}"
QUESTIONS = "Questions.csv"
COLUMNS = ("Question ID", "Type", "Statement")
IMAGE_FOLDERS = (PAIR_IMAGES, "MMVP_VLM_Images")
"""The names of the image folder in the published script and in the published README."""

# The types in the published folder, with the names that its script and paper use
_TYPES = {
    "Orientation": "Orientation and Direction",
    "Presence": "Presence of Specific Features",
    "State": "State and Condition",
    "Quantity": "Quantity and Count",
    "Spatial": "Positional and Relational Context",
    "Color": "Color and Appearance",
    "Structural Character": "Structural Characteristics",
    "Structural and Physical Characteristics": "Structural Characteristics",
    "Text": "Texts",
    "Camera Perspective": "Viewpoint and Perspective",
} | {pattern: pattern for pattern in PATTERNS}


def mmvp(setting: Setting[EvaluationSet]) -> list[Score]:
    """Measure `mean_per_pattern_accuracy`, `pair_accuracy` over all pairs, `statement_accuracy` over all statements
    (chance 50 %, the two of a pair are resampled together), `group_match` over all pairs (chance 50 %), and
    `pair_accuracy/PATTERN` of each pattern.

    The first is what the publications call the average. A pattern without pairs is left out, also of the mean.
    """
    data = setting.data
    encoded = setting.encoded()
    images, positions = encoded.embeddings, encoded.positions
    if len(positions) < len(data):
        raise InputError(f"{data.faults[-1]}: MMVP-VLM needs every image, fetch the set again")
    texts = setting.text_features([PROMPT.format(statement) for (statement,) in data.captions])
    labels = np.array(data.labels[::2])
    pairs = pair_hits(images.view(len(labels), 2, -1), texts.view(len(labels), 2, -1))
    statements, groups = (hits.numpy() for hits in pairs)
    hits = statements.min(axis=1)
    scores = [
        class_mean_score("mean_per_pattern_accuracy", hits, labels, CHANCE),
        mean_score("pair_accuracy", hits, CHANCE),
        mean_score("statement_accuracy", statements.ravel(), 0.5, np.arange(statements.size) // 2),
        mean_score("group_match", groups, 0.5),
    ]
    for label in np.unique(labels):
        name = f"pair_accuracy/{PATTERNS[label]}"
        scores.append(mean_score(name, hits[labels == label], CHANCE))
    method = (
        f"{len(labels)} pairs of {len(set(data.labels))} patterns, {PROMPT.format('STATEMENT')!r}, both statements "
        "must pick their own image of the pair; ties count against"
    )
    return with_facts(scores, protocol=method)


def pair_hits(image_features: Tensor, text_features: Tensor) -> tuple[Tensor, Tensor]:
    """Score the two statements of each pair, and their matching: 0 or 1, float64 [P, 2] and [P], on the CPU.

    A statement is right if it is nearer to its own image than to the other one of its pair. The softmax over the two
    images (p > 0.5 in the published script) has the same winner at any temperature. A matching is right if the sum of
    the statements' cosines with their own images is larger than with swapped images. A tie is wrong, and so is NaN.
    Features [P, 2, D] have unit length, and text i of a pair belongs to image i.
    """
    images, texts = image_features.double().cpu(), text_features.double().cpu()
    # not a matrix product, which may round two equal images differently
    own, other = (images * texts).sum(-1), (images.flip(1) * texts).sum(-1)
    return (own > other).double(), (own.sum(1) > other.sum(1)).double()


def open_pairs(folder: Path, name: str) -> EvaluationSet:
    """Open a folder in the published layout as the set `name`; no image is read yet.

    Images 2i and 2i + 1 are a pair. An image has the number of its pattern as label, and its statement as caption.
    """
    questions = folder / QUESTIONS
    image_folder = next((folder / name for name in IMAGE_FOLDERS if (folder / name).is_dir()), None)
    if not questions.is_file() or image_folder is None:
        raise InputError(
            f"{folder} is not MMVP-VLM: give the folder that holds {QUESTIONS} and {IMAGE_FOLDERS[0]!r}"
        )
    keys, patterns, statements = _read_rows(questions)
    if len(keys) % 2 or not keys:
        raise InputError(f"{questions} has {len(keys)} rows, and each pair needs two: add the missing one")
    for row, (first, second) in enumerate(zip(patterns[::2], patterns[1::2], strict=True)):
        if first != second:
            rows = f"rows {2 * row + 1} and {2 * row + 2}"
            raise InputError(f"{questions}: {rows} are a pair and name two patterns: give both the same")
    labels = [PATTERNS.index(pattern) for pattern in patterns]
    source, indices = FolderSource(image_folder, keys), list(range(len(keys)))
    return EvaluationSet(name, "test", "mmvp", list(PATTERNS), [], source, indices, labels, statements)


def _read_rows(file: Path) -> tuple[list[str], list[str], list[list[str]]]:
    """Read the path of the image, the pattern and the statement of each row."""
    with (
        explain_errors(f"cannot read {file}", "save it as CSV in UTF-8"),
        file.open(newline="", encoding="utf-8-sig") as handle,
    ):
        fields = [[(row.get(name) or "").strip() for name in COLUMNS] for row in csv.DictReader(handle)]
    for row, (number, kind, statement) in enumerate(fields, 1):
        if not (number.isdecimal() and kind and statement):
            raise InputError(f"{file}, row {row} is not a number, a pattern and a statement: write {COLUMNS}")
        if kind not in _TYPES:
            raise InputError(f"{file}, row {row}: {unknown_name('pattern', kind, PATTERNS)}")
    keys = [f"{kind}/{number}.jpg" for number, kind, _ in fields]
    return keys, [_TYPES[kind] for _, kind, _ in fields], [[statement] for *_, statement in fields]


def sugarcrepe(setting: Setting[ChoiceSet]) -> list[Score]:
    """Measure `average`, the mean of the files' accuracies, and the accuracy of each file by its name.

    Items of one image are resampled together.
    """
    encoded = setting.encoded()
    images, positions = encoded.embeddings, encoded.positions
    rows = {position: row for row, position in enumerate(positions)}
    choices = [choice for choice in setting.data.choices if choice.image in rows]
    captions = dict.fromkeys(text for choice in choices for text in (choice.caption, choice.negative))
    index, texts = {text: i for i, text in enumerate(captions)}, setting.text_features(list(captions))
    choice_images = images[[rows[choice.image] for choice in choices]].double()
    positive, negative = (
        (choice_images * texts[[index[text] for text in side]].double()).sum(-1)
        for side in zip(*((choice.caption, choice.negative) for choice in choices), strict=True)
    )
    hits = torch.gt(positive, negative).double().cpu().numpy()
    names, files = np.unique([choice.file for choice in choices], return_inverse=True)
    images_of = np.array([choice.image for choice in choices])
    average = class_mean_score("average", hits, files, 0.5, images_of)
    scores = with_facts([average], of=tuple(names.tolist()))
    for number, name in enumerate(names.tolist()):
        in_file = files == number
        scores.append(mean_score(name, hits[in_file], 0.5, images_of[in_file]))
    method = "the caption must be nearer to the image than the negative one; ties count against"
    return with_facts(scores, protocol=method)

"""MMVP-VLM: which of two nearly equal images does a statement describe? Tong et al. (2024), arXiv:2401.06209.

The set is the published folder (huggingface.co/datasets/MMVP/MMVP_VLM): `Questions.csv` with the columns
Question ID, Type and Statement, and the image `MLLM_VLM Images/TYPE/ID.jpg` of each row. Two rows that follow
each other are a pair. As in the published script (tsb0601/MMVP, `scripts/evaluate_vlm.py`) each statement
chooses between the two images of its pair, and the pair counts if both choose their own, which guessing does
in 25 % of all cases. Two things differ on purpose: the pattern is that of the column Type, where the script
takes it from the order of the rows; and a tie is wrong, where the script's tie means the second image.

25 % is no floor. A model that prefers one image of a pair whatever the statement says is right about no pair,
and untrained models, whose texts are all alike, lie anywhere between 0 and 25 %; two of them can differ
significantly. So the accuracy of single statements is reported beside: such a model has exactly 50 % there.

Shapes: P pairs, B a batch, S image size, D joint width.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from diffclip.data.images import read_image
from diffclip.data.published_sets import PAIR_IMAGES, PATTERNS
from diffclip.errors import InputError, unknown
from diffclip.evaluation.embed import (
    Encoder,
    Progress,
    Tokenizer,
    checked,
    embed_images,
    embed_texts,
    evaluating,
)
from diffclip.evaluation.scores import Score, mean_score
from diffclip.evaluation.statistics import class_mean_interval

CHANCE = 0.25
PROMPT = "a photo of {}"
QUESTIONS = "Questions.csv"
COLUMNS = ("Question ID", "Type", "Statement")
IMAGE_FOLDERS = (PAIR_IMAGES, "MMVP_VLM_Images")
"""The names of the image folder in the published script and in the published README."""

# The published folder's short types, by the names that its script and paper use
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


@dataclass(frozen=True)
class Pair:
    """Two images and two statements, the first of which is true of the first image only."""

    pattern: str
    images: tuple[Path, Path]
    statements: tuple[str, str]


@dataclass(frozen=True)
class PairSet:
    """The pairs of one folder, in the order of its rows. There is one split, and no image is left out."""

    kind: ClassVar[str] = "mmvp"
    split: ClassVar[str] = "test"

    name: str
    pairs: list[Pair]

    def __len__(self) -> int:
        """The number of images."""
        return 2 * len(self.pairs)

    @property
    def patterns(self) -> list[str]:
        """The patterns that occur, in the published order."""
        return [pattern for pattern in PATTERNS if any(pair.pattern == pattern for pair in self.pairs)]

    @property
    def identity(self) -> list[object]:
        """Statements, and name, size and time of each image: equal for equal sets."""
        files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in self.images]
        return [self.name, [(pair.pattern, pair.statements) for pair in self.pairs], files]

    @property
    def images(self) -> list[Path]:
        """The image files, two a pair."""
        return [path for pair in self.pairs for path in pair.images]


def open_pairs(folder: str | Path, name: str | None = None) -> PairSet:
    """Open a folder in the published layout, called `name` (None: as the folder); no image is read yet.

    Raises:
        InputError: no such folder, no Questions.csv or folder of images in it, a column or field that is
            missing, an unknown pattern, an odd number of rows, a pair of two patterns or of one image
            with itself, or images that are missing.
    """
    folder = Path(folder).expanduser()
    if not folder.is_dir():
        raise InputError(f"{folder} is no folder: give the one that holds {QUESTIONS} of MMVP-VLM")
    questions = folder / QUESTIONS
    rows = _read_rows(questions)
    inside = next((folder / name for name in IMAGE_FOLDERS if (folder / name).is_dir()), None)
    if inside is None:
        raise InputError(f"{folder} has no folder {IMAGE_FOLDERS[0]!r} or {IMAGE_FOLDERS[1]!r} with images")
    if len(rows) % 2:
        raise InputError(
            f"{questions} has {len(rows)} rows, but two that follow each other are a pair: one is missing"
        )
    pairs = [
        _pair(questions, inside, first, second) for first, second in zip(rows[::2], rows[1::2], strict=True)
    ]
    missing = [path for pair in pairs for path in pair.images if not path.is_file()]
    if missing:
        raise InputError(
            f"{missing[0]} does not exist: {len(missing)} of the {len(rows)} images that {questions} names "
            "are missing, fetch the set again"
        )
    return PairSet(name or folder.resolve().name, pairs)


def statement_hits(image_features: Tensor, text_features: Tensor) -> Tensor:
    """Score whether each statement is nearer to its own image than to the other one of its pair.

    The softmax over the two images (p > 0.5 in the published script) has the same winner at any temperature. A tie is
    wrong, and so is NaN.

    Args:
        image_features: [P, 2, D], unit length.
        text_features: [P, 2, D], unit length; text i of a pair belongs to image i.

    Returns:
        float64 [P, 2] of 0 and 1, on the CPU; a pair is right if both are.
    """
    images, texts = image_features.double().cpu(), text_features.double().cpu()
    # not a matrix product, which may round two equal images differently
    own, other = (images * texts).sum(-1), (images.flip(1) * texts).sum(-1)
    return (own > other).double()


def mmvp(
    model: Encoder,
    tokenizer: Tokenizer,
    preprocess: Callable[[Image.Image], Tensor],
    pairs: PairSet,
    batch_size: int = 64,
    progress: Progress | None = None,
) -> list[Score]:
    """`mean_per_pattern_accuracy`, `pair_accuracy` over all pairs, `statement_accuracy` over all statements (chance
    50 %, a pair's two drawn together), and `pair_accuracy/PATTERN` of each pattern.

    The first is what the publications call the average. A pattern without pairs is left out, of the mean too.
    `hits` of the others hold the outcomes, so their sum is the number of pairs (or statements) that are right.

    Args:
        preprocess: PIL image → [3, S, S].
        batch_size: images embedded at once.

    Raises:
        InputError: an image that cannot be read, or an embedding that is not finite.
    """
    paths = pairs.images
    texts = [PROMPT.format(statement) for pair in pairs.pairs for statement in pair.statements]
    features = []
    with evaluating(model):
        for start in range(0, len(paths), batch_size):
            batch = [preprocess(read_image(path)) for path in paths[start : start + batch_size]]
            features.append(embed_images(model, torch.stack(batch)))
            if progress:
                progress("images", len(batch), len(paths))
        images = checked(torch.cat(features), "images")
        statements = embed_texts(model, tokenizer, texts, progress=progress)
        shape = (len(pairs.pairs), 2, -1)
        hits = statement_hits(images.view(shape), statements.view(shape)).numpy()
    return _scores(hits, [pair.pattern for pair in pairs.pairs])


def _scores(single: NDArray[np.float64], patterns: Sequence[str]) -> list[Score]:
    hits = single.min(axis=1)
    labels = np.array([PATTERNS.index(pattern) for pattern in patterns])
    found = np.unique(labels)
    mean = float(np.mean([hits[labels == label].mean() for label in found]))
    low, high = class_mean_interval(hits, labels)
    return [
        Score("mean_per_pattern_accuracy", mean, len(hits), low, high, CHANCE),
        mean_score("pair_accuracy", hits, CHANCE),
        mean_score("statement_accuracy", single.ravel(), 0.5, np.arange(single.size) // 2),
        *(mean_score(f"pair_accuracy/{PATTERNS[label]}", hits[labels == label], CHANCE) for label in found),
    ]


@dataclass(frozen=True)
class _Row:
    line: int
    number: int
    type: str
    statement: str


def _read_rows(file: Path) -> list[_Row]:
    try:
        with file.open(newline="", encoding="utf-8-sig") as handle:
            reader = csv.DictReader(handle)
            columns = reader.fieldnames or []
            absent = [column for column in COLUMNS if column not in columns]
            if absent:
                raise InputError(
                    f"{file} has no column {absent[0]!r} (its first line is {', '.join(columns)!r}): "
                    f"write {', '.join(COLUMNS)}"
                )
            rows = [_row(file, reader.line_num, fields) for fields in reader]
    except FileNotFoundError:
        raise InputError(f"{file} does not exist: it lists the statements of MMVP-VLM") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"cannot read {file} ({error}): it should be CSV in UTF-8") from error
    if not rows:
        raise InputError(f"{file} has no row below its first line")
    return rows


def _row(file: Path, line: int, fields: dict[str, str | None]) -> _Row:
    number, kind, statement = ((fields[column] or "").strip() for column in COLUMNS)
    if None in fields:
        raise InputError(f"{file}, line {line} has too many fields: put the statement in quotes")
    if not (number.isascii() and number.isdecimal()):
        raise InputError(f"{file}, line {line}: {COLUMNS[0]} {number[:20]!r} is not a whole number")
    if kind not in _TYPES:
        raise InputError(f"{file}, line {line}: {unknown('pattern', kind, PATTERNS)}")
    if not statement:
        raise InputError(f"{file}, line {line} has no statement")
    return _Row(line, int(number), kind, statement)


def _pair(file: Path, inside: Path, first: _Row, second: _Row) -> Pair:
    where = f"{file}, lines {first.line} and {second.line}"
    if _TYPES[first.type] != _TYPES[second.type]:
        raise InputError(f"{where} are a pair of two patterns, {first.type!r} and {second.type!r}")
    if first.number == second.number:
        raise InputError(f"{where} are a pair of image {first.number} with itself")
    images = (inside / first.type / f"{first.number}.jpg", inside / second.type / f"{second.number}.jpg")
    return Pair(_TYPES[first.type], images, (first.statement, second.statement))

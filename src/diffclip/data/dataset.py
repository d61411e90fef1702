"""Map-style datasets of one's own: `dataset[i]` is (image, captions) or (image, class), and `len(dataset)` is known.

An image is a PIL image, an array uint8 [H, W, 3] or [H, W], or a tensor uint8 [3, H, W]. Captions are a text or
several, and a class is a number. An item may be a mapping, whose first two values count.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.order import Layout
from diffclip.data.pairs import Captions, Pair
from diffclip.errors import Fault, InputError, sample_fault
from diffclip.files import digest_of
from diffclip.preprocess import to_rgb

_TEMPLATE = "a photo of a {c}"


class DatasetSource:
    """The images of a dataset by number. Their contents are not hashed, so that no earlier result stands for them."""

    def __init__(self, dataset: Any, name: str) -> None:
        self.dataset, self._name, self.identity = dataset, name, uuid.uuid4().hex

    def __len__(self) -> int:
        return len(self.dataset)

    def __str__(self) -> str:
        return self._name

    def name(self, i: int) -> str:
        """Return the name of item `i`, for messages."""
        return f"{self._name}[{i}]"

    def image(self, i: int) -> Image.Image:
        """Return image `i` as RGB, or raise `InputError` if the dataset fails to give it."""
        try:
            return as_image(item_of(self.dataset, i)[0])
        except InputError:
            raise
        except Exception as error:  # a dataset may raise anything
            raise InputError(f"{self.name(i)} cannot be read ({type(error).__name__}: {error})") from error


class DatasetPairs:
    """The images and captions of a dataset to train on, with the interface of `Pairs`. It has no shards, so it is its
    own `tars`, and its order depends on its length alone."""

    is_remote, window = False, None

    def __init__(self, dataset: Any) -> None:
        name = f"dataset {type(dataset).__name__}"
        self.tars, self._source = self, DatasetSource(dataset, name)
        self.faults, self.notes = list[Fault](), list[Fault]()
        self.layout = Layout([[len(self)]], [1.0])
        self.sources: list[dict[str, Any]] = [
            {"spec": name, "shards": 0, "samples": len(self), "weight": 1.0}
        ]
        self.identity = self.order_identity = digest_of([name, len(self)])

    def __len__(self) -> int:
        return len(self._source)

    def __str__(self) -> str:
        return str(self._source)

    def __getitem__(self, i: int) -> Pair | Fault:
        name = self._source.name(i)
        try:
            pixels = torch.from_numpy(np.array(self._source.image(i))).permute(2, 0, 1)
            captions = captions_in(item_of(self._source.dataset, i)[1])
        except InputError as error:
            return sample_fault(name, error)
        if captions is None:
            return Fault(name, "has a class, and training needs captions", "caption")
        return Pair(str(i), name, Captions(captions), pixels)

    def keep_indexes(self) -> None:
        """Do nothing: there are no shards."""

    def decode(self) -> None:
        """Do nothing: the dataset decides what it keeps in memory."""

    def fetch(self, number: int) -> None:
        """Do nothing: nothing is remote."""


def item_of(dataset: Any, i: int) -> tuple[Any, Any]:
    """Return the image and the captions or class of item `i`."""
    item = dataset[i]
    values = list(item.values()) if isinstance(item, Mapping) else list(item)
    if len(values) < 2:
        raise InputError(
            f"item {i} of the dataset has {len(values)} parts: give (image, captions) or (image, class)"
        )
    return values[0], values[1]


def as_image(image: Any) -> Image.Image:
    """Convert an image of a dataset to RGB, or raise `InputError` for another type or shape."""
    if isinstance(image, Image.Image):
        return to_rgb(image)
    values = (
        image.permute(1, 2, 0).numpy() if isinstance(image, Tensor) and image.ndim == 3 else np.asarray(image)
    )
    if values.dtype != np.uint8 or values.ndim not in (2, 3) or values.shape[2:] not in ((), (3,)):
        raise InputError(
            f"an image of the dataset is {values.dtype} {list(values.shape)}: give a PIL image, an array uint8 "
            "[H, W, 3] or a tensor uint8 [3, H, W]"
        )
    return to_rgb(Image.fromarray(values))


def captions_in(answer: Any) -> list[str] | None:
    """Return the captions of an item; None if its answer is a class."""
    if isinstance(answer, str):
        return [answer]
    texts = list(answer) if isinstance(answer, Sequence) else []
    return texts if texts and all(isinstance(text, str) for text in texts) else None


def dataset_set(
    dataset: Any,
    split: str = "test",
    name: str = "dataset",
    classnames: Sequence[str] = (),
    templates: Sequence[str] = (_TEMPLATE,),
    train: Any = None,
) -> EvaluationSet:
    """Make the evaluation set of a dataset: retrieval for captions, classification for classes.

    Args:
        classnames: names by class; by default `dataset.classes`, as torchvision has them.
        templates: prompts with `{c}` for the class name.
        train: the dataset that a linear probe or few-shot learns from.

    Raises:
        InputError: an item is of another kind than the first, or a class has no name.
    """
    answers = [item_of(dataset, i)[1] for i in range(len(dataset))]
    if not answers:
        raise InputError(f"{name} is empty: give a dataset with items")
    source, numbers = DatasetSource(dataset, name), list(range(len(answers)))
    if captions_in(answers[0]) is not None:
        captions = [captions_in(answer) or [] for answer in answers]
        if empty := [i for i, texts in enumerate(captions) if not texts]:
            raise InputError(
                f"{source.name(empty[0])} has no captions, and item 0 has: give all items the same kind"
            )
        return EvaluationSet(name, split, "retrieval", [], [], source, numbers, captions=captions)
    names = list(classnames or getattr(dataset, "classes", ()))
    labels = [int(answer) for answer in answers]
    if not 0 <= min(labels) <= max(labels) < len(names):
        raise InputError(
            f"{name} has the class {max(labels)}, and {len(names)} class names are known: give classnames"
        )

    def beside(other: str) -> EvaluationSet | None:
        return (
            dataset_set(train, other, name, names, templates)
            if train is not None and other == "train"
            else None
        )

    return EvaluationSet(
        name, split, "classification", names, list(templates), source, numbers, labels, beside=beside
    )

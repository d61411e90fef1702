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
        # one that is streamed, for example
        if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
            raise InputError(
                f"{name} ({type(dataset).__name__}) has no length or no items by number: give a map-style dataset"
            )
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
        return _as_image(self.item(i)[0], self.name(i))

    def item(self, i: int) -> tuple[Any, list[str] | int]:
        """Return the image and the captions, without the blank ones, or the class of item `i`."""
        try:
            item = self.dataset[i]
            image, answer = list(item.values() if isinstance(item, Mapping) else item)[:2]
            texts = [answer] if isinstance(answer, str) else answer
            is_text = isinstance(texts, Sequence) and all(isinstance(text, str) for text in texts)
            return image, [text.strip() for text in texts if text.strip()] if is_text else int(answer)
        except Exception as error:  # a dataset may raise anything
            reason = f"cannot be read ({type(error).__name__}: {error})"
            raise InputError(self.name(i), reason, "give (image, captions) or (image, class)") from error


class DatasetPairs:
    """The images and captions of a dataset to train on, with the interface of `Pairs`. It has no shards, so it is its
    own `tars`, and its order depends on its length alone."""

    is_remote, window = False, None

    def __init__(self, dataset: Any) -> None:
        name = f"dataset {type(dataset).__name__}"
        self.tars, self._source = self, DatasetSource(dataset, name)
        self.faults, self.notes = list[Fault](), list[Fault]()
        self.layout = Layout([[len(self)]], [1.0])
        source = {"spec": name, "shards": 0, "samples": len(self), "weight": 1.0}
        self.sources: list[dict[str, Any]] = [source]
        self.identity = self.order_identity = digest_of([name, len(self)])

    def __len__(self) -> int:
        return len(self._source)

    def __str__(self) -> str:
        return str(self._source)

    def __getitem__(self, i: int) -> Pair | Fault:
        name = self._source.name(i)
        try:
            image, captions = self._source.item(i)
            pixels = torch.from_numpy(np.array(_as_image(image, name))).permute(2, 0, 1)
        except InputError as error:
            return sample_fault(name, error)
        if isinstance(captions, int) or not captions:
            return Fault(name, "has no text, and training needs captions", "caption")
        return Pair(str(i), name, Captions(captions), pixels)

    def _do_nothing(self, *_: Any) -> None:
        """Nothing is remote, and the dataset decides what it keeps in memory."""

    keep_indexes = decode = fetch = _do_nothing


def _as_image(image: Any, name: str) -> Image.Image:
    """Convert the image of item `name` to RGB, or raise `InputError` for a broken image, another type or shape."""
    try:
        if isinstance(image, Image.Image):
            return to_rgb(image)
        is_planes = isinstance(image, Tensor) and image.ndim == 3
        values = image.permute(1, 2, 0).numpy() if is_planes else np.asarray(image)
    except Exception as error:  # PIL reads a file only now, and what is no image may raise anything
        reason = f"has an image that cannot be read ({type(error).__name__}: {error})"
        raise InputError(name, reason, "give a whole image") from error
    is_shape = values.ndim in (2, 3) and values.shape[2:] in ((), (3,)) and 0 not in values.shape
    if values.dtype != np.uint8 or not is_shape:
        advice = "give a PIL image, an array uint8 [H, W, 3] or a tensor uint8 [3, H, W]"
        raise InputError(name, f"has an image that is {values.dtype} {list(values.shape)}", advice)
    return to_rgb(Image.fromarray(values))


def dataset_set(
    dataset: Any,
    split: str = "test",
    name: str = "dataset",
    classnames: Sequence[str] = (),
    templates: Sequence[str] = (_TEMPLATE,),
    train: Any = None,
) -> EvaluationSet:
    """Make the evaluation set of a dataset: retrieval for captions, classification for classes. Items that cannot be
    read, or have no caption, are skipped and are its `faults`.

    Args:
        classnames: names by class; by default `dataset.classes`, as torchvision has them.
        templates: prompts with `{c}` for the class name.
        train: the dataset that a linear probe or few-shot learns from.

    Raises:
        InputError: an item is of another kind than the first, a class has no name, or every item is skipped.
    """
    source = DatasetSource(dataset, name)
    answers: dict[int, list[str] | int] = {}
    faults: list[Fault] = []
    for i in range(len(source)):
        try:
            answer = source.item(i)[1]
        except InputError as error:
            faults.append(sample_fault(source.name(i), error))
            continue
        if answer == []:
            faults.append(Fault(source.name(i), "has an empty caption"))
        else:
            answers[i] = answer
    if not answers:
        empty = f"{name} is empty: give a dataset with items"
        raise InputError(f"no item of {name} can be used (first: {faults[0]})" if faults else empty)
    numbers = list(answers)
    captions = [answer for answer in answers.values() if isinstance(answer, list)]
    labels = [answer for answer in answers.values() if isinstance(answer, int)]
    if captions and labels:
        odd = next(i for i in numbers if type(answers[i]) is not type(answers[numbers[0]]))
        raise InputError(
            f"{source.name(odd)} has no captions or no class, and others have: give all the same kind"
        )
    if captions:
        return EvaluationSet(
            name, split, "retrieval", [], [], source, numbers, captions=captions, faults=faults
        )
    names = list(classnames or getattr(dataset, "classes", ()))
    if not 0 <= min(labels) <= max(labels) < len(names):
        known = f"{len(names)} class names are known"
        raise InputError(f"{name} has the class {max(labels)}, and {known}: give classnames")

    def beside(other: str) -> EvaluationSet | None:
        is_there = train is not None and other == "train"
        return dataset_set(train, other, name, names, templates) if is_there else None

    return EvaluationSet(
        name,
        split,
        "classification",
        names,
        list(templates),
        source,
        numbers,
        labels,
        faults=faults,
        beside=beside,
    )

"""Features of a frozen vision tower, for a linear probe and few-shot classification.

A feature is the class token after the final norm, before the projection into the joint space (768 wide in a ViT-B),
in float32, not scaled to unit length. Shapes: N images, D vision width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.published_sets import parts_of
from diffclip.errors import InputError
from diffclip.evaluation.corruptions import CorruptedTransform
from diffclip.evaluation.embed import Setting
from diffclip.evaluation.suite import TRAIN
from diffclip.model import CLIP


class Features(NamedTuple):
    """Features [N, D] float32 of labeled images, their classes int64 [N], and the name of their split for messages."""

    name: str
    values: Tensor
    labels: Tensor

    def take(self, indices: Tensor, name: str) -> Features:
        """Select some of the images and call them `name`."""
        return Features(name, self.values[indices], self.labels[indices])

    def check(self, classnames: Sequence[str], least: int, purpose: str) -> None:
        """Raise `InputError` for a class with fewer than `least` images."""
        counts = torch.bincount(self.labels, minlength=len(classnames)).tolist()
        short = [
            f"{name!r} has {count}" for name, count in zip(classnames, counts, strict=True) if count < least
        ]
        if short:
            note = f" ({len(short)} classes have too few)" if len(short) > 1 else ""
            raise InputError(
                f"{self.name}: class {short[0]} images{note}, and {least} are needed {purpose}: add some, or leave "
                "the class out of the set"
            )


def describe_features(model: Any) -> str:
    """Describe the features of `model`, for the protocol of a record."""
    return "class token before the projection" if isinstance(model, CLIP) else "the encoder's features"


def train_and_test(setting: Setting[EvaluationSet], task: str) -> tuple[Features, Features]:
    """Compute the features of the set's split `train`, and of the tested split."""
    data = setting.data
    if parts_of(data.split)[0] == TRAIN:
        raise InputError(
            f"{task} learns from the split {TRAIN}: give another one to test on, as --split test"
        )
    train = data.beside(TRAIN)
    if train is None:
        raise InputError(f"{data.name} has no {TRAIN} split, which {task} learns from: add its shards")
    return read_features(setting, train), read_features(setting, data)


def read_features(setting: Setting[EvaluationSet], data: EvaluationSet) -> Features:
    """Compute the features of a split, once per model; its broken images join the faults of the tested split."""
    if data.classnames != setting.data.classnames:
        # shards and the publisher's files may number the same classes in another order
        raise InputError(
            f"{data.name}: {data.split} and {setting.data.split} have different classes: "
            "use shards or files for both"
        )
    transform = setting.preprocess
    if isinstance(transform, CorruptedTransform):
        raise InputError(
            "corruptions shift test images, and this task learns from clean ones: "
            "use them with zero-shot, retrieval, mmvp or focus"
        )
    encoded = setting.encoded(data)
    labels = torch.tensor([data.labels[position] for position in encoded.positions])
    return Features(f"{data.name}/{data.split}", encoded.tokens, labels)


@contextmanager
def one_thread(alone: bool = True) -> Iterator[None]:
    """Compute on one CPU thread inside, if `alone`: for many short steps, sharing work takes longer than doing it."""
    threads = torch.get_num_threads()
    try:
        if alone:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)

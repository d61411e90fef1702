"""What a task learns from: the train and validation splits beside the one that it is tested on."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.errors import InputError

TRAIN, VALIDATION = "train", ("val", "validation")
_SHARE = 0.2  # of each class, held out where a set has no validation split


def train_split(data: EvaluationSet, task: str) -> EvaluationSet:
    """The train split of the set that `data` is a split of; `task` is for the message.

    Raises:
        InputError: there is none, it is `data` itself, or it cannot be read.
    """
    if data.split == TRAIN:
        raise InputError(
            f"{task} learns from the split {TRAIN}: give another one to test on, as --split test"
        )
    found = data.beside(TRAIN)
    if found is None:
        there = "" if data.folder is None else f": put its shards into {data.folder / TRAIN}"
        raise InputError(f"{data.name} has no {TRAIN} split, which {task} learns from{there}")
    return found


def validation_split(data: EvaluationSet) -> EvaluationSet | None:
    """The validation split of the set that `data` is another split of, if it has one.

    Raises:
        InputError: it cannot be read.
    """
    splits = (data.beside(name) for name in VALIDATION if name != data.split)
    return next((split for split in splits if split is not None), None)


def stratified_split(labels: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    """Four fifths to learn from and a fifth to validate on, drawn within each class.

    A class with two or more pictures is in both; one with a single picture is in the first.

    Args:
        labels: int64 [N].
        seed: of the draw.

    Returns:
        Two index tensors, int64, ascending, that hold each of the N once.

    Raises:
        InputError: no class has two pictures.
    """
    generator = np.random.default_rng(seed)
    classes = labels.numpy()
    held = np.zeros(len(classes), dtype=bool)
    for number in np.unique(classes):
        own = np.flatnonzero(classes == number)
        count = min(max(1, round(_SHARE * len(own))), len(own) - 1)
        held[generator.permutation(own)[:count]] = True
    if not held.any():
        raise InputError(
            "no class has two pictures to train on, so none can be held out to choose the cost on"
        )
    return torch.from_numpy(np.flatnonzero(~held)), torch.from_numpy(np.flatnonzero(held))

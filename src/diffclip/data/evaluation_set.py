"""One split of a set to evaluate on: its samples, what they show, and its pictures in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from diffclip.data.pictures import evaluation_batches
from diffclip.data.samples import Fault, Transform
from diffclip.data.sources import Source, digest_of
from diffclip.errors import InputError

Kind = Literal["classification", "retrieval", "masks"]


@dataclass
class EvaluationBatch:
    """images [B, 3, S, S] as the transform makes them, their positions [B] in the set, and what they show.

    `labels` is int64 [B] for classification, else None; `captions` are each picture's own, None for classification.
    """

    images: Tensor
    positions: list[int]
    labels: Tensor | None
    captions: list[list[str]] | None


def _no_split(split: str) -> None:
    return None


@dataclass
class EvaluationSet:
    """One split of a set to evaluate on.

    Attributes:
        name: the set's name, for a folder that of the folder.
        split: which split.
        kind: "classification", "retrieval" or "masks".
        classnames: by label; empty for retrieval.
        templates: prompts with `{c}` for the class name; empty for retrieval.
        source: where the pictures come from.
        indices: the numbers in `source` of the set's samples.
        labels: one a sample for classification, else empty.
        captions: one or more a sample for retrieval, the texts of its masks for masks, else empty.
        faults: what was skipped so far; `batches` adds the broken pictures that it meets.
        folder: where the set lies, if its splits may lie there as folders of shards.
        open_split: opens another split of the set, None where there is none.
    """

    name: str
    split: str
    kind: Kind
    classnames: list[str]
    templates: list[str]
    source: Source
    indices: list[int]
    labels: list[int] = field(default_factory=list)
    captions: list[list[str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    folder: Path | None = None
    open_split: Callable[[str], EvaluationSet | None] = _no_split

    def __len__(self) -> int:
        return len(self.indices)

    def key(self, position: int) -> str:
        """The key of the sample at `position`."""
        return self.source.key(self.indices[position])

    def beside(self, split: str) -> EvaluationSet | None:
        """Another split of the same set, None where it has no such split.

        Raises:
            InputError: there is one, and it cannot be read.
        """
        return self.open_split(split)

    @property
    def identity(self) -> dict[str, str]:
        """What tells this split from any other, and from itself before a change; JSON can hold it.

        `source` stands for the files behind it, `samples` for those that are used, `answers` for their labels or
        captions, `texts` for the class names and templates.
        """
        return {
            "name": self.name,
            "split": self.split,
            "source": self.source.identity(),
            "samples": digest_of(self.indices),
            "answers": digest_of([self.labels, self.captions]),
            "texts": digest_of([self.classnames, self.templates]),
        }

    def batches(self, transform: Transform, batch_size: int, workers: int = 0) -> Iterator[EvaluationBatch]:
        """The set in order, up to `batch_size` pictures at a time; broken ones are left out.

        Args:
            transform: PIL RGB → [3, S, S], usually `eval_transform`'s.
            batch_size: pictures a batch.
            workers: processes that read ahead; 0 reads in this one.

        Raises:
            InputError: all pictures are broken.
            DiffCLIPError: a worker died.
        """
        broken: list[Fault] = []
        try:
            pictures = evaluation_batches(self.source, self.indices, transform, batch_size, broken, workers)
            for batch in pictures:
                positions = batch.positions
                labels = torch.tensor([self.labels[p] for p in positions]) if self.labels else None
                captions = [self.captions[p] for p in positions] if self.captions else None
                yield EvaluationBatch(batch.images, positions, labels, captions)
        finally:
            # A second pass meets the same broken pictures.
            self.faults = list(dict.fromkeys(self.faults + broken))


def check_several(classnames: list[str], where: str) -> None:
    """Raise `InputError` for a set with a single class, about which every answer is right."""
    if len(classnames) == 1:
        raise InputError(
            f"{where} has a single class, {classnames[0]!r}, so that every answer is right: give two or more"
        )

"""One split of a set to evaluate on: its samples, their labels or captions, and its images in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from diffclip.data.samples import Fault, Transform, sample_fault
from diffclip.data.sources import Source, digest_of
from diffclip.data.workers import leave_signals_to_parent, watched
from diffclip.errors import InputError

Kind = Literal["classification", "retrieval", "masks"]


@dataclass
class ImageBatch:
    """images [B, 3, S, S] as the transform makes them, and their positions [B] in what was asked for."""

    images: Tensor
    positions: list[int]


@dataclass
class EvaluationBatch:
    """images [B, 3, S, S] as the transform makes them, their positions [B] in the set, and their answers.

    `labels` is int64 [B] for classification, else None; `captions` are each image's own, None for classification.
    """

    images: Tensor
    positions: list[int]
    labels: Tensor | None
    captions: list[list[str]] | None


@dataclass
class EvaluationSet:
    """One split of a set to evaluate on.

    Attributes:
        name: the set's name, for a folder that of the folder.
        split: which split.
        kind: "classification", "retrieval" or "masks".
        classnames: by label; empty for retrieval.
        templates: prompts with `{c}` for the class name; empty for retrieval.
        source: where the images come from.
        indices: the numbers in `source` of the set's samples.
        labels: one a sample for classification, else empty.
        captions: one or more a sample for retrieval, the texts of its masks for masks, else empty.
        faults: what was skipped so far; `batches` adds the broken images that it meets.
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
    open_split: Callable[[str], EvaluationSet | None] = lambda split: None

    def __len__(self) -> int:
        return len(self.indices)

    def key(self, position: int) -> str:
        """The key of the sample at `position`."""
        return self.source.key(self.indices[position])

    def beside(self, split: str) -> EvaluationSet | None:
        """Open another split of the same set; None where it has no such split.

        Raises:
            InputError: there is one, and it cannot be read.
        """
        return self.open_split(split)

    @property
    def identity(self) -> dict[str, str]:
        """Digests that tell this split from any other, and from itself before a change; JSON can hold them.

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
        """Read the set in order, up to `batch_size` images at a time; broken ones are left out.

        Args:
            transform: PIL RGB → [3, S, S], usually `eval_transform`'s.
            batch_size: images a batch.
            workers: processes that read ahead; 0 reads in this one.

        Raises:
            InputError: all images are broken.
            DiffCLIPError: a worker died.
        """
        broken: list[Fault] = []
        try:
            for batch in evaluation_batches(
                self.source, self.indices, transform, batch_size, broken, workers
            ):
                positions = batch.positions
                labels = torch.tensor([self.labels[p] for p in positions]) if self.labels else None
                captions = [self.captions[p] for p in positions] if self.captions else None
                yield EvaluationBatch(batch.images, positions, labels, captions)
        finally:
            # A second pass meets the same broken images.
            self.faults = list(dict.fromkeys(self.faults + broken))


def evaluation_batches(
    source: Source,
    indices: Sequence[int],
    transform: Transform,
    batch_size: int,
    faults: list[Fault],
    workers: int = 0,
    timeout: float = 0,
) -> Iterator[ImageBatch]:
    """Read the images `indices` of a source, in that order, up to `batch_size` at a time.

    A broken image is left out and appended to `faults`; a batch of nothing else is not given. Workers that give
    nothing for `timeout` seconds are an error; 0 waits for ever.

    Raises:
        InputError: all images are broken.
        DiffCLIPError: a worker died.
    """
    loader: DataLoader[Any] = DataLoader(
        _Images(source, indices, transform),
        batch_size=batch_size,
        collate_fn=_collate,
        num_workers=workers,
        timeout=timeout if workers else 0,
        worker_init_fn=leave_signals_to_parent,
        # Without its own generator a DataLoader draws from the global one.
        generator=torch.Generator(),
    )
    read, broken = 0, []
    for batch, found in watched(loader):
        faults += found
        broken += found
        if batch is not None:
            read += len(batch.positions)
            yield batch
    if broken and not read:
        raise InputError(f"every image in {source} is broken, the first one: {broken[0]}")


class _Images(Dataset[tuple[int, Tensor] | Fault]):
    def __init__(self, source: Source, indices: Sequence[int], transform: Transform) -> None:
        self.source, self.indices, self.transform = source, indices, transform

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, position: int) -> tuple[int, Tensor] | Fault:
        i = int(self.indices[position])
        try:
            image = self.source.image(i)
        except (InputError, OSError) as error:
            return sample_fault(self.source.name(i), error)
        return position, self.transform(image)


def _collate(items: list[tuple[int, Tensor] | Fault]) -> tuple[ImageBatch | None, list[Fault]]:
    faults = [item for item in items if isinstance(item, Fault)]
    whole = [item for item in items if not isinstance(item, Fault)]
    if not whole:
        return None, faults
    positions, images = zip(*whole, strict=True)
    return ImageBatch(torch.stack(images), list(positions)), faults


def check_several(classnames: list[str], where: str) -> None:
    """Raise `InputError` for a set with a single class, about which every answer is right."""
    if len(classnames) == 1:
        raise InputError(
            f"{where} has a single class, {classnames[0]!r}, so that every answer is right: give two or more"
        )

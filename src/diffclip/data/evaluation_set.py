"""One split of a set to evaluate on: the source of its images, their labels or captions, and batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from PIL import Image
from torch import Tensor

from diffclip.data.images import read_image
from diffclip.data.index import stamp
from diffclip.data.tar_set import TarSample, TarSet
from diffclip.data.workers import map_processes
from diffclip.errors import Fault, InputError, sample_fault
from diffclip.files import digest_of
from diffclip.preprocess import Transform

Kind = Literal["classification", "retrieval", "masks", "segmentation", "sugarcrepe", "mmvp"]


class FolderSource:
    """The image files `keys` below one folder."""

    def __init__(self, folder: Path, keys: Sequence[str]) -> None:
        self.folder, self.keys = folder, list(keys)

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        return str(self.folder)

    def name(self, i: int) -> str:
        """Return the path of image `i`, for messages."""
        return str(self.folder / self.keys[i])

    def image(self, i: int) -> Image.Image:
        """Read image `i` as RGB, or raise `InputError` if it is missing or broken."""
        return read_image(self.folder / self.keys[i])

    @cached_property
    def identity(self) -> str:
        """A digest of the names, sizes and times of the files."""
        return digest_of([[file, stamp(self.folder / file)] for file in self.keys])


Source = FolderSource | TarSet
"""Images by number, each with a name for messages; `identity` is a digest of all their files."""


@dataclass
class ImageBatch:
    """`images` [B, 3, S, S], their positions [B] in the set, and their captions if it has any."""

    images: Tensor
    positions: list[int]
    captions: list[list[str]] | None = None


@dataclass
class EvaluationSet:
    """One split of a set to evaluate on.

    Attributes:
        name: the name of the set, or of its folder.
        classnames: class names by label, for mmvp the patterns; empty if the set has no classes.
        templates: prompts with `{c}` for the class name; empty if the set has none.
        indices: the number in `source` of each sample.
        labels: one per sample for classification and mmvp, else empty.
        captions: per sample its captions for retrieval, its mask texts for masks, its statement for mmvp; else empty.
        faults: the samples skipped so far; `batches` adds the broken images that it finds.
        beside: opens another split of the set by name; returns None if there is no such split.
    """

    name: str
    split: str
    kind: Kind
    classnames: list[str]
    templates: list[str]
    source: Source | Any
    indices: list[int]
    labels: list[int] = field(default_factory=list)
    captions: list[list[str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    beside: Callable[[str], EvaluationSet | None] = lambda split: None
    BY_SAMPLE: ClassVar[tuple[str, ...]] = ("indices", "labels", "captions")

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, first: int | None, end: int | None) -> Self:
        """Take samples `first` to `end` − 1 (None: no bound), or raise `InputError` if some or all are missing."""
        rows = range(len(self))[first:end]
        if not rows or (end or 0) > len(self):
            bounds = ":".join("" if bound is None else str(bound) for bound in (first, end))
            raise InputError(
                f"{self.name}/{self.split} has {len(self)} samples, not those of [{bounds}]: give a smaller range"
            )
        return self.take(rows)

    def take(self, rows: Sequence[int]) -> Self:
        """Take the samples at positions `rows` as a new set."""
        by_sample = {name: values for name in self.BY_SAMPLE if (values := getattr(self, name))}
        fields: dict[str, Any] = {name: [values[row] for row in rows] for name, values in by_sample.items()}
        return replace(self, **fields, faults=list(self.faults))

    @property
    def identity(self) -> dict[str, str]:
        """Digests of the files (`source`), the used samples, their answers, and class names and templates (`texts`)."""
        return {
            "name": self.name,
            "split": self.split,
            "source": self.source.identity,
            "samples": digest_of(self.indices),
            "answers": digest_of([self.labels, self.captions]),
            "texts": digest_of([self.classnames, self.templates]),
        }

    def batches(
        self, transform: Transform, batch_size: int, workers: int = 0, timeout: float = 0
    ) -> Iterator[ImageBatch]:
        """Read the set in order; broken images are left out and added to `faults`.

        `transform` maps a PIL RGB image to [3, S, S]. `workers` and `timeout` are as in `data_loader`. `InputError` is
        raised if all images are broken, `DiffCLIPError` if a worker died or gave nothing in time.
        """
        rows = range(len(self))
        positions = [rows[start : start + batch_size] for start in rows[::batch_size]]
        read_batch = partial(_read_batch, self.source, self.indices, transform)
        read, broken, known = 0, [], set(self.faults)
        for batch, faults in map_processes(read_batch, positions, workers, timeout):
            broken += faults
            # a second pass finds the same broken images again
            self.faults += [fault for fault in faults if fault not in known]
            if batch is not None:
                read += len(batch.positions)
                if self.captions:
                    batch.captions = [self.captions[position] for position in batch.positions]
                yield batch
        if broken and not read:
            raise InputError(
                f"every image in {self.source} is broken (first: {broken[0]}): replace the files"
            )


def read_answers(tars: TarSet, read: Callable[[TarSample], Any]) -> tuple[list[int], list[Any], list[Fault]]:
    """Read the answer of each sample with `read`, which raises `InputError` or `OSError` if it cannot be read. Return
    the numbers of the samples with an answer, their answers, and the faults of the set and of the other samples."""
    indices, answers, faults = [], [], tars.faults + tars.notes
    for i in range(len(tars)):
        sample = tars[i]
        try:
            answers.append(read(sample))
            indices.append(i)
        except (InputError, OSError) as error:
            faults.append(sample_fault(sample.name, error))
    if not indices:
        raise InputError(f"no sample in {tars} can be used (first: {faults[0]}): {tars.members.advice}")
    return indices, answers, faults


def _read_batch(
    source: Source, indices: Sequence[int], transform: Transform, positions: Iterable[int]
) -> tuple[ImageBatch | None, list[Fault]]:
    """Read the images at `positions` of a set; None instead of a batch if all of them are broken."""
    images, whole, faults = [], [], []
    for position in positions:
        i = int(indices[position])
        try:
            image = source.image(i)
        except (InputError, OSError) as error:
            faults.append(sample_fault(source.name(i), error))
            continue
        images.append(transform(image))
        whole.append(position)
    return ImageBatch(torch.stack(images), whole) if images else None, faults

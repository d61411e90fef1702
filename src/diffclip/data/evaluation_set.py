"""One split of a set to evaluate on: where its images come from, their labels or captions, and batches of them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from diffclip.data.images import read_image, to_rgb
from diffclip.data.index import digest_of, stamp
from diffclip.data.shards import Shards
from diffclip.data.transforms import Transform
from diffclip.data.workers import data_loader, watched
from diffclip.errors import Fault, InputError, sample_fault

Kind = Literal["classification", "retrieval", "masks", "segmentation", "sugarcrepe", "mmvp"]


class FolderSource:
    """Images below one folder, by `keys`: image files, or the items of a map-style data set as torchvision's.

    Files are read as `read_image` does. The images of a data set are as it gives them, in RGB. It may be pickled to
    data workers.

    Args:
        folder: holds all the files.
        keys: paths in it, with forward slashes; of a data set that keeps no list of its files, numbers.
        dataset: its items are a PIL image and something else.
    """

    def __init__(self, folder: Path, keys: Sequence[str], dataset: Any = None) -> None:
        self.folder, self.keys, self.dataset = folder, list(keys), dataset

    def __len__(self) -> int:
        return len(self.keys)

    def __str__(self) -> str:
        return str(self.folder)

    def key(self, i: int) -> str:
        """The path of image `i` in the folder."""
        return self.keys[i]

    def name(self, i: int) -> str:
        """Image `i` for people: where to find it."""
        return str(self.folder / self.keys[i])

    def image(self, i: int) -> Image.Image:
        """Read image `i` as RGB.

        Raises:
            InputError: it is broken or missing, or cannot be read.
        """
        if self.dataset is None:
            return read_image(self.folder / self.keys[i])
        try:
            return to_rgb(self.dataset[i][0])
        # What Pillow's readers raise for a damaged file is nearly anything.
        except Exception as error:
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"{self.name(i)} is missing, cut short or broken ({reason})") from error

    @cached_property
    def identity(self) -> str:
        """A digest of the names, sizes and times of the files."""
        files = self.keys
        if self.dataset is not None:
            found = (Path(parent, name) for parent, _, names in os.walk(self.folder) for name in names)
            files = sorted(file.relative_to(self.folder).as_posix() for file in found)
        return digest_of([[file, stamp(self.folder / file)] for file in files])


Source = FolderSource | Shards
"""Images by number, each with a key, a name for people and an `identity` of all their files."""


@dataclass
class ImageBatch:
    """images [B, 3, S, S] as the transform makes them, their positions [B] in the set, and their answers.

    `labels` is int64 [B] for a classification set, else None; `captions` are each image's own where the set has them.
    """

    images: Tensor
    positions: list[int]
    labels: Tensor | None = None
    captions: list[list[str]] | None = None


@dataclass
class EvaluationSet:
    """One split of a set to evaluate on.

    Attributes:
        name: the set's name, for a folder that of the folder.
        split: which split.
        kind: what the set is for.
        classnames: by label; empty for retrieval.
        templates: prompts with `{c}` for the class name; empty for retrieval.
        source: where the images come from.
        indices: the numbers in `source` of the set's samples.
        labels: one a sample for classification, else empty.
        captions: one or more a sample for retrieval, the texts of its masks for masks, else empty.
        faults: what was skipped so far; `batches` adds the broken images that it meets.
        folder: where the set lies, if its splits may lie there as folders of shards.
        beside: opens another split of the set; None where there is none. Raises `InputError` if it cannot be read.
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
    beside: Callable[[str], EvaluationSet | None] = lambda split: None
    BY_SAMPLE: ClassVar[tuple[str, ...]] = ("indices", "labels", "captions")

    def __len__(self) -> int:
        return len(self.indices)

    def part(self, first: int | None, end: int | None) -> Self:
        """Samples `first` to `end` − 1 (None: from the start, to the end) as a set of their own.

        Raises:
            InputError: there are none.
        """
        rows = range(len(self))[first:end]
        if not rows:
            raise InputError(
                f"{self.name}/{self.split} has {len(self)} samples: none lies in [{first}:{end}]"
            )
        return self.take(rows)

    def take(self, rows: Sequence[int]) -> Self:
        """The samples at positions `rows` as a set of their own."""
        by_sample = {name: getattr(self, name) for name in self.BY_SAMPLE}
        kept: dict[str, Any] = {
            name: [values[row] for row in rows] for name, values in by_sample.items() if values
        }
        return replace(self, **kept, faults=list(self.faults))

    def key(self, position: int) -> str:
        """The key of the sample at `position`."""
        return self.source.key(self.indices[position])

    @property
    def identity(self) -> dict[str, str]:
        """Digests that tell this split from any other, and from itself before a change; JSON can hold them.

        `source` stands for the files behind it, `samples` for those that are used, `answers` for their labels or
        captions, `texts` for the class names and templates.
        """
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
        """Read the set in order, up to `batch_size` images at a time; broken ones are left out and added to `faults`.

        Args:
            transform: PIL RGB → [3, S, S], usually an `EvalTransform`.
            batch_size: images a batch.
            workers: processes that read ahead; 0 reads in this one.
            timeout: seconds after which workers that give nothing are an error; 0 waits for ever.

        Raises:
            InputError: all images are broken.
            DiffCLIPError: a worker died, or gave nothing.
        """
        images = _Images(self.source, self.indices, transform)
        loader = data_loader(images, workers, timeout, batch_size=batch_size, collate_fn=_collate)
        read, broken, known = 0, [], set(self.faults)
        for batch, found in watched(loader):
            broken += found
            # a second pass meets the same broken images
            self.faults += [fault for fault in found if fault not in known]
            if batch is not None:
                read += len(batch.positions)
                if self.labels:
                    batch.labels = torch.tensor([self.labels[p] for p in batch.positions])
                if self.captions:
                    batch.captions = [self.captions[p] for p in batch.positions]
                yield batch
        if broken and not read:
            raise InputError(
                f"every image in {self.source} is broken (first: {broken[0]}): replace the files"
            )


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

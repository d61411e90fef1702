"""Sets to evaluate on: folders in clip_benchmark's layout, and the built-in scenes by name.

The layout is that of LAION-AI/CLIP_benchmark (`datasets/builder.py`, `build_wds_dataset`): `SPLIT/{0..n}.tar`
with `SPLIT/nshards.txt`, `classnames.txt`, `zeroshot_classification_templates.txt` and `dataset_type.txt`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

import diffclip
from diffclip.data.pictures import evaluation_batches
from diffclip.data.samples import (
    CAPTION_KEY,
    PICTURE,
    Fault,
    Transform,
    caption_members,
    captions_of,
    sample_fault,
)
from diffclip.data.shards import Shards, expand_shards, tar_files
from diffclip.errors import InputError, unknown
from diffclip.files import cache_folder

Kind = Literal["classification", "retrieval"]

DEFAULT_TEMPLATE = "a photo of a {c}"
# The name of a built-in set → its folder in what `write_scenes` draws.
BUILT_IN = {
    "scenes": "captions",
    "scenes-shapes": "shapes",
    "scenes-colours": "colours",
    "scenes-mmvp": "mmvp",
    "scenes-shapes-sketch": "shapes-sketch",
    "scenes-shapes-recoloured": "shapes-recoloured",
    "scenes-shapes-noisy": "shapes-noisy",
}


@dataclass
class EvaluationBatch:
    """images [B, 3, S, S] as the transform makes them, their positions [B] in the set, and what they show.

    `labels` is int64 [B] for classification, else None; `captions` each picture's for retrieval, else None.
    """

    images: Tensor
    positions: list[int]
    labels: Tensor | None
    captions: list[list[str]] | None


@dataclass
class EvaluationSet:
    """One split of a set to evaluate on.

    Attributes:
        name: the folder's name.
        split: which split.
        kind: "classification" or "retrieval".
        classnames: by label; empty for retrieval.
        templates: prompts with `{c}` for the class name; empty for retrieval.
        shards: where the samples are.
        indices: the numbers in `shards` of the set's samples.
        labels: one a sample for classification, else empty.
        captions: one or more a sample for retrieval, else empty.
        faults: what was skipped so far; `batches` adds the broken pictures that it meets.
    """

    name: str
    split: str
    kind: Kind
    classnames: list[str]
    templates: list[str]
    shards: Shards
    indices: list[int]
    labels: list[int] = field(default_factory=list)
    captions: list[list[str]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.indices)

    def key(self, position: int) -> str:
        """The key of the sample at `position`."""
        return self.shards.key(self.indices[position])

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
            pictures = evaluation_batches(self.shards, self.indices, transform, batch_size, broken, workers)
            for batch in pictures:
                positions = batch.positions
                labels = torch.tensor([self.labels[p] for p in positions]) if self.labels else None
                captions = [self.captions[p] for p in positions] if self.captions else None
                yield EvaluationBatch(batch.images, positions, labels, captions)
        finally:
            # A second pass meets the same broken pictures.
            self.faults = list(dict.fromkeys(self.faults + broken))


def open_set(source: str | Path, split: str) -> EvaluationSet:
    """Open one split of a set.

    Args:
        source: a folder in clip_benchmark's layout, or the name of a built-in set: `scenes` (retrieval),
            `scenes-shapes` or `scenes-colours` (classification), drawn into the user's cache folder on first use.
        split: a folder of shards in it, for example `test`.

    Raises:
        InputError: no such set, folder or split; no shards or samples; no class list; labels that cannot be
            read or lie outside the class list.
    """
    name, folder = str(source), set_folder(source)
    if name not in BUILT_IN:
        name = folder.resolve().name
    kind = _kind(folder)
    shards = Shards(_shards(folder, split))
    if kind == "retrieval":
        return caption_set(name, split, shards)
    return _classification(name, split, shards, folder)


def _classification(name: str, split: str, shards: Shards, folder: Path) -> EvaluationSet:
    classnames = _lines(folder / "classnames.txt")
    if not classnames:
        raise InputError(f"{folder} has no classnames.txt, one class name a line, which classification needs")
    if "" in classnames:
        raise InputError(
            f"{folder / 'classnames.txt'}: line {classnames.index('') + 1} is blank, name the class"
        )
    prompts = folder / "zeroshot_classification_templates.txt"
    templates = [line for line in _lines(prompts) if line] or [DEFAULT_TEMPLATE]
    for template in templates:
        if "{c}" not in template:
            raise InputError(f"{template!r} in {prompts} has no {{c}} where the class name goes")
    usable, missing = shards.usable({"picture": PICTURE, "label (.cls)": ("cls",)})
    indices, faults = usable.tolist(), shards.faults + missing
    if not indices:
        raise InputError(f"no sample in {folder / split} has a picture and a label (.cls): {faults[0]}")
    labels = [_label(shards, i, len(classnames)) for i in indices]
    kind: Kind = "classification"
    return EvaluationSet(name, split, kind, classnames, templates, shards, indices, labels, faults=faults)


def caption_set(name: str, split: str, shards: Shards, caption_key: str = CAPTION_KEY) -> EvaluationSet:
    """Pictures with their captions as a set for retrieval.

    Raises:
        InputError: no sample has a picture and a caption.
    """
    usable, missing = shards.usable({"picture": PICTURE, "caption": caption_members(caption_key)})
    faults = shards.faults + missing
    indices, captions = [], []
    for i in usable.tolist():
        where = shards.name(i)
        try:
            captions.append(captions_of(shards.sample(i, caption_members(caption_key)), where, caption_key))
            indices.append(i)
        except (InputError, OSError) as error:
            faults.append(sample_fault(where, error))
    if not indices:
        raise InputError(f"no sample in {shards} has a picture and captions (.txt, one a line): {faults[0]}")
    return EvaluationSet(name, split, "retrieval", [], [], shards, indices, captions=captions, faults=faults)


def _label(shards: Shards, i: int, classes: int) -> int:
    text = shards.sample(i, ("cls",))["cls"].decode("ascii", "replace").strip()
    if not re.fullmatch(r"[+-]?\d{1,18}", text, re.ASCII):
        raise InputError(f"label {text[:20]!r} of {shards.name(i)} is not a whole number: correct its .cls")
    if not 0 <= int(text) < classes:
        raise InputError(
            f"label {text} of {shards.name(i)} is outside the {classes} classes of classnames.txt"
        )
    return int(text)


def set_folder(source: str | Path) -> Path:
    """The folder of a set, or of a built-in one, which is drawn on first use.

    Raises:
        InputError: no such set or folder.
    """
    if str(source) in BUILT_IN:
        return _scenes() / BUILT_IN[str(source)]
    folder = Path(source).expanduser()
    if folder.is_dir():
        return folder
    if folder.exists():
        raise InputError(f"{source} is a file: give the folder that holds the splits of a set")
    if os.sep not in str(source):
        raise InputError(f"{unknown('set', source, BUILT_IN)}; or give a folder in clip_benchmark's layout")
    raise InputError(f"folder {source} does not exist: give a set in clip_benchmark's layout, or 'scenes'")


def _scenes() -> Path:
    """The built-in pictures, drawn on first use, anew for each version of the package."""
    from diffclip.data.scenes import write_scenes

    folder = cache_folder() / f"scenes-{diffclip.__version__}"
    write_scenes(folder, size=64, train=4000, val=500, test=1000, seed=0)
    return folder


def _kind(folder: Path) -> Kind:
    kind = " ".join(_lines(folder / "dataset_type.txt")).lower() or "classification"
    if kind not in ("classification", "retrieval"):
        raise InputError(f"{folder / 'dataset_type.txt'} says {kind!r}: write classification or retrieval")
    return "retrieval" if kind == "retrieval" else "classification"


def _shards(folder: Path, split: str) -> list[Path]:
    inside = folder / split
    if not inside.is_dir():
        splits = sorted(path.name for path in folder.iterdir() if path.is_dir() and any(path.glob("*.tar")))
        if not splits:
            raise InputError(f"{folder} has no split {split!r}, nor any other folder of .tar shards")
        raise InputError(f"{folder} has no split {split!r}: choose from {', '.join(splits)}")
    count = _lines(inside / "nshards.txt")
    if not count:
        return tar_files(inside)
    if not count[0].isdecimal() or int(count[0]) == 0:
        raise InputError(f"{inside / 'nshards.txt'} holds {count[0]!r} instead of the number of shards")
    return expand_shards([inside / f"{number}.tar" for number in range(int(count[0]))])


def _lines(file: Path) -> list[str]:
    """The lines of a text file, stripped, up to the last that is not blank; none if there is no such file."""
    try:
        return [line.strip() for line in file.read_text(encoding="utf-8-sig").rstrip().splitlines()]
    except FileNotFoundError:
        return []
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"cannot read {file} ({error}): it should be UTF-8 text") from error

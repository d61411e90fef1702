"""Images with masks: objects with a text each (`.mask.png`), or a class for each pixel (`.seg.png`).

In an object mask, all values except 0 are the object. Its text is the first line of `.txt`, or its class (`.cls`) in
the first template. In a built-in scene, the mask has the number of each object, and `.json` describes the objects:
those with the same color and shape are one object with one text.

In a class mask, value n is line n of `classnames.txt`, 0 is not labeled, and 255 (a crowd) is ignored.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from diffclip.data.evaluation_set import EvaluationSet, read_answers
from diffclip.data.images import ORIENTATION, orientation_of
from diffclip.data.members import MASK, SEGMENTS
from diffclip.data.pairs import PairKeys
from diffclip.data.tar_set import TarSample, TarSet
from diffclip.errors import Fault, InputError, sample_fault
from diffclip.preprocess import LONGEST_RATIO

CROWD, NOT_LABELED = 255, -1
Box = tuple[float, float, float, float]
"""left, top, right, bottom as shares of an image's width and height."""
# rounding error of a share of 0 or 1
_ROUNDING = 1e-9


@dataclass(frozen=True)
class MaskedObject:
    """The object of a text: its name for a template, its own `text`, and its values in the mask (None: all but 0)."""

    name: str
    text: str
    values: tuple[int, ...] | None = None

    def worded(self, prompt: str | None, words: Mapping[str, str] | None = None) -> str:
        """Return the text; or `prompt`, if given, with the name (or its entry in `words`) in place of `{c}`."""
        return self.text if prompt is None else prompt.replace("{c}", (words or {}).get(self.name, self.name))


@dataclass
class MaskedSet(EvaluationSet):
    """One split of images with masks; `objects` has the objects of each sample, and `captions` has their texts."""

    objects: list[list[MaskedObject]] = field(default_factory=list)
    BY_SAMPLE: ClassVar[tuple[str, ...]] = (*EvaluationSet.BY_SAMPLE, "objects")

    def coverages(
        self, position: int, image_size: int, edge: int | Literal["squash"], grid: int
    ) -> tuple[list[MaskedObject], NDArray[np.float64]]:
        """Return the objects of a sample that a crop shows, and their shares of each patch: [objects, grid, grid].

        Objects outside the crop, objects that fill it, and broken masks are left out. Each call adds them to `faults`.
        `image_size` and `edge` are as in `crop_box`; `grid` is the number of patches along an edge.
        """
        name = self.source.name(self.indices[position])
        objects, shares = [], [np.empty((0, grid, grid))]
        try:
            mask, size = _read_member(self, position, MASK)
        except (InputError, OSError) as error:
            self.faults.append(sample_fault(name, error))
            return [], shares[0]
        box = crop_box(size, image_size, edge)
        for item in self.objects[position]:
            pixels = mask != 0 if item.values is None else np.isin(mask, item.values)
            share = coverage(pixels, box, grid)
            if _ROUNDING <= share.mean() <= 1 - _ROUNDING:
                objects.append(item)
                shares.append(share[None])
                continue
            outside = "lies outside the model's crop" if pixels.any() else "has no pixel in its mask"
            reason = "fills the model's crop" if share.mean() > 0.5 else outside
            self.faults.append(Fault(name, f"has an object that {reason}: {item.name!r}", "mask"))
        return objects, np.concatenate(shares)


def classes_at(data: EvaluationSet, position: int) -> NDArray[np.int64] | None:
    """Return the class of each pixel of a sample of segmentation, counted from 0, or NOT_LABELED: [H, W].

    Return None if the file is broken, does not fit image or class list, or labels no pixel; add it to `data.faults`.
    """
    try:
        values, _ = _read_member(data, position, SEGMENTS)
        classes = np.where(values == CROWD, 0, values).astype(np.int64) - 1
        highest, known = int(classes.max()), len(data.classnames)
        if highest == NOT_LABELED:
            raise InputError("has no labeled pixel")
        if highest >= known:
            raise InputError(f"has class {highest + 1} in its segmentation, and classnames.txt has {known}")
    except (InputError, OSError) as error:
        data.faults.append(sample_fault(data.source.name(data.indices[position]), error))
        return None
    return classes


def masked_set(name: str, split: str, tars: TarSet, classnames: Sequence[str], template: str) -> MaskedSet:
    """Open the images of `tars`, which have masks, that have a text: `.txt`, or `.cls` with its entry of `classnames`
    in the `template`. Raise `InputError` if no sample has image, mask and text."""

    def read(sample: TarSample) -> list[MaskedObject]:
        return _masked_objects(sample.read("json", "txt", "cls"), sample.name, classnames, template)

    indices, objects, faults = read_answers(tars, read)
    texts = [[item.text for item in of_sample] for of_sample in objects]
    return MaskedSet(
        name, split, "masks", [], [], tars, indices, captions=texts, faults=faults, objects=objects
    )


def label_of(sample: Mapping[str, bytes], name: str, classes: int) -> int:
    """Read the label in the sample's `.cls`, or raise `InputError` unless it is a number from 0 to `classes` − 1."""
    text = sample["cls"].decode("utf-8-sig", "replace").strip()
    if not text.isdecimal() or len(text) > 9 or int(text) >= classes:  # Python reads no number of 5000 digits
        raise InputError(
            f"label {text[:20]!r} of {name} is not a number from 0 to {classes - 1}, the lines of classnames.txt: "
            "correct its .cls"
        )
    return int(text)


def _masked_objects(
    sample: Mapping[str, bytes], name: str, classnames: Sequence[str], template: str
) -> list[MaskedObject]:
    numbers: dict[str, list[int]] = {}
    for number, kind in enumerate(_objects(sample), 1):
        numbers.setdefault(kind, []).append(number)
    if numbers:
        return [
            MaskedObject(kind, f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}", tuple(values))
            for kind, values in numbers.items()
        ]
    if "txt" in sample:
        text = PairKeys().parse(sample, name).texts[0]
        return [MaskedObject(text, text)]
    if "cls" not in sample:
        raise InputError(name, "has no text for its mask (.txt or .cls)")
    if not classnames:
        raise InputError(name, "has a class (.cls), and the set has no classnames.txt")
    name_of_class = classnames[label_of(sample, name, len(classnames))]
    return [MaskedObject(name_of_class, template.replace("{c}", name_of_class))]


def _objects(sample: Mapping[str, bytes]) -> list[str]:
    """Return color and shape of the objects in a scene's `.json`; [] for any other sample."""
    try:
        return [f"{item['colour']} {item['shape']}" for item in json.loads(sample["json"])["objects"]]
    except (ValueError, LookupError, TypeError):
        return []


def _read_member(data: EvaluationSet, position: int, ending: str) -> tuple[NDArray[Any], tuple[int, int]]:
    """Read a mask of the sample at `position` as `read_mask` does."""
    assert isinstance(data.source, TarSet)
    members = data.source[data.indices[position]].read("image", ending)
    return read_mask(members[ending], members["image"])


def read_mask(data: bytes, image: bytes) -> tuple[NDArray[Any], tuple[int, int]]:
    """Read the mask `data` of `image`, both as files. The mask is a PNG, of any size with the aspect of the image; one
    with the aspect of the stored image gets the image's EXIF orientation.

    Returns:
        The values [H, W]: numbers (of a palette the index) or booleans; and width and height of the upright image.

    Raises:
        InputError: the image is broken; or the mask is no PNG, broken, in color, transparent, or of another aspect.
    """
    try:
        with Image.open(io.BytesIO(image)) as header:
            stored, orientation = header.size, orientation_of(header)
        with Image.open(io.BytesIO(data), formats=("PNG",)) as opened:
            mask = ImageOps.exif_transpose(opened)
    except Exception as error:  # a damaged file makes Pillow's reader raise nearly any error
        raise InputError(
            f"has a mask that is no PNG, or an image or mask that is broken ({error})"
        ) from error
    if mask.mode in ("LA", "RGB", "RGBA"):
        raise InputError("has a mask in color or with transparency: save it as 1-bit, gray or palette")
    size = stored if orientation < 5 else stored[::-1]
    if _same_aspect(mask.size, stored):
        mask.getexif()[ORIENTATION] = orientation
        mask = ImageOps.exif_transpose(mask)
    elif not _same_aspect(mask.size, size):
        mask_size, image_size = ("{}×{}".format(*shape) for shape in (mask.size, size))
        raise InputError(f"has a mask of {mask_size} pixels, another shape than its image's {image_size}")
    return np.asarray(mask), size


def _same_aspect(mask: tuple[int, int], image: tuple[int, int]) -> bool:
    """Tell whether a mask has the aspect of an image, apart from rounding if the mask was scaled."""
    if mask[0] == image[0] or mask[1] == image[1]:
        return mask == image
    return abs(mask[0] * image[1] - mask[1] * image[0]) < max(image)


def crop_box(size: tuple[int, int], image_size: int, edge: int | Literal["squash"]) -> Box:
    """Find the part of an upright image of `size` (width, height) that `EvalTransform` keeps: a crop of `image_size`
    pixels after the shorter edge was scaled to `edge`; with "squash", all of it."""
    if edge == "squash":
        return 0, 0, 1, 1
    # a very long image is cut at both ends before it is scaled
    lengths = [min(length, LONGEST_RATIO * min(size)) for length in size]
    ends = []
    for whole, part in zip(size, lengths, strict=True):
        scaled = edge if part == min(lengths) else int(edge * part / min(lengths))
        first = round((scaled - image_size) / 2)
        start = round((whole - part) / 2)
        ends.append([(start + part * bound / scaled) / whole for bound in (first, first + image_size)])
    return ends[0][0], ends[1][0], ends[0][1], ends[1][1]


def coverage(mask: NDArray[np.bool_], box: Box, grid: int) -> NDArray[np.float64]:
    """Compute the share of each of grid×grid patches of the crop `box` that a mask [H, W] covers: [grid, grid]."""
    left, top, right, bottom = box
    columns = _overlaps(mask.shape[1], left, right, grid)
    # one row of patches at a time: as float64, a whole mask would take eight times its memory
    rows = _overlaps(mask.shape[0], top, bottom, grid)
    shares = [columns @ (weights[weights > 0] @ mask[weights > 0]) for weights in rows]
    return np.clip(np.stack(shares), 0, 1)


def _overlaps(length: int, low: float, high: float, parts: int) -> NDArray[np.float64]:
    """Compute the share that each of `length` pixels has in each of `parts` equal parts of low … high (of 0 … 1)."""
    edges = np.linspace(low, high, parts + 1) * length
    pixels = np.arange(length)
    ends = np.minimum(edges[1:, None], pixels + 1) - np.maximum(edges[:-1, None], pixels)
    return np.maximum(ends, 0) / np.diff(edges)[:, None]

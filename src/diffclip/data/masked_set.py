"""Pictures with masks, and the text of each mask: what the task `focus` looks at.

A sample holds a picture, its mask (`.mask.png`) and a text: the first line of `.txt`, or a class (`.cls`) put into the
first template. Every value of such a mask but 0 is object. A sample of the built-in scenes numbers its objects in the
mask, and its `.json` says what they are: there each thing that can be told apart by shape and colour has its text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.masks import Box, coverage, crop_box, geometry, read_mask, upright, upright_size
from diffclip.data.samples import PICTURE, Fault, captions_of, label_of, sample_fault
from diffclip.data.shards import Shards
from diffclip.errors import InputError

MASK = "mask.png"
_LEFT_OUT = "has an object that"
# what rounding leaves of an area that is nothing or all
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Thing:
    """What a text is about: its name for a template, its own `text`, and its values in the mask (None: all but 0)."""

    name: str
    text: str
    values: tuple[int, ...] | None = None

    def worded(self, prompt: str | None) -> str:
        """Its text, or `prompt` with its name where `{c}` stands."""
        return self.text if prompt is None else prompt.replace("{c}", self.name)


@dataclass
class MaskedSet(EvaluationSet):
    """One split of pictures with masks; `things` are those of each sample, and `captions` their texts."""

    things: list[list[Thing]] = field(default_factory=list)

    def coverages(
        self, position: int, image_size: int, edge: int | Literal["squash"], grid: int
    ) -> tuple[list[Thing], NDArray[np.float64]]:
        """The things of a sample that a crop shows, and how much of each patch each covers, [things, grid, grid].

        What lies outside the crop, and what fills it, is left out and added to `faults`, each time; so is a mask that
        is broken.

        Args:
            image_size, edge: of the crop, see `crop_box`.
            grid: patches along an edge.
        """
        i = self.indices[position]
        try:
            mask, box = self._mask(i, image_size, edge)
        except (InputError, OSError) as error:
            self.faults.append(sample_fault(self.source.name(i), error))
            return [], np.empty((0, grid, grid))
        things, covered = [], []
        for thing in self.things[position]:
            own = mask != 0 if thing.values is None else np.isin(mask, thing.values)
            found = coverage(own, box, grid)
            why = _unusable(own, float(found.mean()))
            if why:
                self.faults.append(Fault(self.source.name(i), f"{_LEFT_OUT} {why}: {thing.name!r}"))
                continue
            things.append(thing)
            covered.append(found)
        return things, np.stack(covered) if covered else np.empty((0, grid, grid))

    def _mask(self, i: int, image_size: int, edge: int | Literal["squash"]) -> tuple[NDArray[Any], Box]:
        shards = self.source
        if not isinstance(shards, Shards):
            raise TypeError("masks lie in shards")
        sample = shards.sample(i, (*PICTURE, MASK))
        picture = next(sample[extension] for extension in PICTURE if extension in sample)
        stored, orientation = geometry(picture)
        mask = upright(read_mask(sample[MASK]), stored, orientation)
        return mask, crop_box(upright_size(stored, orientation), image_size, edge)


def masked_set(name: str, split: str, shards: Shards, classnames: Sequence[str], template: str) -> MaskedSet:
    """The pictures of `shards` that have a mask and a text.

    Args:
        classnames: by label, for samples with a `.cls`; may be empty.
        template: with `{c}` for a class name.

    Raises:
        InputError: no sample has a picture, a mask and a text; a label outside the class list.
    """
    usable, faults = shards.usable({"picture": PICTURE, f"mask (.{MASK})": (MASK,)})
    faults = shards.faults + faults
    if not len(usable):
        raise InputError(f"no sample in {shards} has a picture and a mask (.{MASK}): {faults[0]}")
    indices, things = [], []
    for i in usable.tolist():
        where = shards.name(i)
        try:
            things.append(_things(shards.sample(i, ("json", "txt", "cls")), where, classnames, template))
            indices.append(i)
        except (InputError, OSError) as error:
            faults.append(sample_fault(where, error))
    if not indices:
        raise InputError(f"no sample in {shards} has a text for its mask: {faults[0]}")
    texts = [[one.text for one in own] for own in things]
    return MaskedSet(
        name, split, "masks", [], [], shards, indices, captions=texts, faults=faults, things=things
    )


def says_left_out(fault: Fault) -> bool:
    """Whether a fault is about an object that a crop does not show, or shows alone, where nothing is broken."""
    return fault.reason.startswith(_LEFT_OUT)


def _things(sample: Mapping[str, bytes], name: str, classnames: Sequence[str], template: str) -> list[Thing]:
    told = _objects(sample)
    if told:
        numbers: dict[str, list[int]] = {}
        for number, one in enumerate(told, 1):
            article = "an" if one["colour"][0] in "aeiou" else "a"
            numbers.setdefault(f"{article} {one['colour']} {one['shape']}", []).append(number)
        return [Thing(text.partition(" ")[2], text, tuple(own)) for text, own in numbers.items()]
    if "txt" in sample:
        text = captions_of({"txt": sample["txt"]}, name)[0]
        return [Thing(text, text)]
    if "cls" not in sample:
        raise InputError(f"{name} has no text for its mask (.txt or .cls)")
    if not classnames:
        raise InputError(f"{name} has a class (.cls), and the set has no classnames.txt")
    name_of_class = classnames[label_of(sample, name, len(classnames))]
    return [Thing(name_of_class, template.replace("{c}", name_of_class))]


def _objects(sample: Mapping[str, bytes]) -> list[dict[str, str]]:
    """The objects that a scene's `.json` names by shape and colour; none of any other."""
    try:
        found = json.loads(sample.get("json", b"{}"))["objects"]
        return [{key: str(one[key]) for key in ("colour", "shape")} for one in found]
    except (ValueError, RecursionError, LookupError, TypeError):
        return []


def _unusable(mask: NDArray[np.bool_], area: float) -> str:
    if not mask.any():
        return "has no pixel in its mask"
    if area < _ROUNDING:
        return "lies outside the model's crop"
    return "fills the model's crop" if area > 1 - _ROUNDING else ""

"""SugarCrepe and folders of its layout: images with a true caption and a hard negative one (Hsieh et al. 2023).

A folder has a JSON file a kind of negative, `{"0": {"filename", "caption", "negative_caption"}, …}` as published
(github.com/RAIVNLab/sugar-crepe, `data/`). The images are in its `val2017`, or in that of `mscoco_captions` beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from diffclip.data.evaluation_set import EvaluationSet, FolderSource
from diffclip.data.index import digest_of
from diffclip.data.published_sets import CHOICE_IMAGES
from diffclip.errors import InputError

_SHARED_IMAGES = "mscoco_captions"
_FIELDS = ("filename", "caption", "negative_caption")


class Choice(NamedTuple):
    """An item: its file (`swap_obj`), the position of its image in the set, and its two captions."""

    file: str
    image: int
    caption: str
    negative: str


@dataclass
class ChoiceSet(EvaluationSet):
    """The images of all files, each once, and the items of each file in its order."""

    choices: list[Choice] = field(default_factory=list)

    def take(self, rows: Sequence[int]) -> Self:
        position = {row: i for i, row in enumerate(rows)}
        kept = [one._replace(image=position[one.image]) for one in self.choices if one.image in position]
        return replace(super().take(rows), choices=kept)

    @property
    def identity(self) -> dict[str, str]:
        return super().identity | {"answers": digest_of(self.choices)}


def open_choices(name: str, folder: Path) -> ChoiceSet:
    """Open a folder in SugarCrepe's layout as the set `name`, whose split is `test`; no image is read yet.

    Raises:
        InputError: no JSON file, one that is no list of items, or images that are missing.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(
            f"{folder} has no JSON file of SugarCrepe: give the folder with swap_obj.json and others"
        )
    images: dict[str, int] = {}
    choices = []
    for file in files:
        for image, caption, negative in _read_items(file):
            choices.append(Choice(file.stem, images.setdefault(image, len(images)), caption, negative))
    places = (folder / CHOICE_IMAGES, folder.resolve().parent / _SHARED_IMAGES / CHOICE_IMAGES)
    place = next((one for one in places if one.is_dir()), places[0])
    missing = [image for image in images if not (place / image).is_file()]
    if missing:
        raise InputError(
            f"{place / missing[0]} does not exist: {len(missing)} of the {len(images)} images of {name} are missing, "
            f"put COCO's val2017 (http://images.cocodataset.org/zips/val2017.zip) into {places[0]} or {places[1]}"
        )
    source, indices = FolderSource(place, list(images)), list(range(len(images)))
    return ChoiceSet(name, "test", "sugarcrepe", [], [], source, indices, choices=choices)


def _read_items(file: Path) -> list[tuple[str, str, str]]:
    """Read image, caption and negative caption of each item."""
    try:
        items = json.loads(file.read_text(encoding="utf-8"))
        read = {key: tuple(item[name] for name in _FIELDS) for key, item in items.items()}
    except (OSError, ValueError, RecursionError, LookupError, TypeError, AttributeError) as error:
        raise InputError(
            f"{file} is no file of SugarCrepe ({type(error).__name__}): it maps numbers to {', '.join(_FIELDS)}"
        ) from error
    for key, item in read.items():
        if (
            not all(isinstance(text, str) and text.strip() for text in item)
            or os.path.basename(item[0]) != item[0]
        ):
            raise InputError(f"{file}, item {key} is not a file name and two captions: correct it")
    if not read:
        raise InputError(f"{file} has no item: fetch it again")
    return list(read.values())

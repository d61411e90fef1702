"""SugarCrepe (Hsieh et al. 2023, arXiv:2306.14610): images with two captions each, of which one is right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, Self

from diffclip.data.evaluation_set import EvaluationSet, FolderSource
from diffclip.data.published_sets import CHOICE_IMAGES
from diffclip.errors import InputError, explain_errors
from diffclip.files import digest_of


class Choice(NamedTuple):
    """An item of SugarCrepe: its file (`swap_obj`), the position of its image in the set, and its two captions."""

    file: str
    image: int
    caption: str
    negative: str


@dataclass
class ChoiceSet(EvaluationSet):
    """The images of all files of SugarCrepe, each once; `choices` are the items of the files, in their order."""

    choices: list[Choice] = field(default_factory=list)

    def take(self, rows: Sequence[int]) -> Self:
        position = {row: i for i, row in enumerate(rows)}
        items = [item._replace(image=position[item.image]) for item in self.choices if item.image in position]
        return replace(super().take(rows), choices=items)

    @property
    def identity(self) -> dict[str, str]:
        return super().identity | {"answers": digest_of(self.choices)}


def open_choices(name: str, folder: Path) -> ChoiceSet:
    """Open a folder in SugarCrepe's layout as the set `name`, whose split is `test`.

    It has a JSON file per kind of negative, `{"0": {"filename", "caption", "negative_caption"}, …}` as published
    (github.com/RAIVNLab/sugar-crepe, `data/`). The images are in its subfolder `val2017`, or in `val2017` of the folder
    `mscoco_captions` beside it. A file without such items, or a missing image, raises `InputError`.
    """
    files = sorted(folder.glob("*.json"))
    if not files:
        raise InputError(
            f"{folder} has no JSON file of SugarCrepe: give the folder of swap_obj.json and others"
        )
    images: dict[str, int] = {}
    choices = []
    for file in files:
        advice = "give a file of items with filename, caption and negative_caption, as SugarCrepe's"
        with explain_errors(f"{file} cannot be read", advice):
            for item in json.loads(file.read_text(encoding="utf-8")).values():
                texts = item["filename"], item["caption"], item["negative_caption"]
                if not all(isinstance(text, str) for text in texts):
                    raise TypeError(f"{texts} are not texts")
                choices.append(Choice(file.stem, images.setdefault(texts[0], len(images)), *texts[1:]))
    folders = (folder / CHOICE_IMAGES, folder.resolve().parent / "mscoco_captions" / CHOICE_IMAGES)
    source = FolderSource(next((path for path in folders if path.is_dir()), folders[0]), list(images))
    missing = [path for path in map(source.folder.joinpath, images) if not path.is_file()]
    if missing:
        raise InputError(
            f"{missing[0]} does not exist: {len(missing)} of the {len(images)} images of {name} are missing, put "
            f"COCO's val2017 (http://images.cocodataset.org/zips/val2017.zip) into {folders[0]} or {folders[1]}"
        )
    return ChoiceSet(name, "test", "sugarcrepe", [], [], source, list(range(len(images))), choices=choices)

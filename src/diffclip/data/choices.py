"""Open the files of published sets in ROOT/NAME, as torchvision or the publisher packs them.

clip_benchmark's builders read the files that torchvision fetches, with clip_benchmark's class names and templates.
ImageNet and its shifts have one folder of images per class. The name of the folder gives the label. The class names are
the 1000 of OpenAI's CLIP; ImageNet-A and -R have 200 of them. (clip_benchmark's builders of these sets download while
they open a set, and do not notice a missing class.) Opening a set here never downloads anything.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from diffclip.data.captions import read_captions
from diffclip.data.evaluation_set import EvaluationSet, FolderSource
from diffclip.data.images import SUFFIXES, is_hidden
from diffclip.data.published_sets import (
    CHOICE_IMAGES,
    PUBLISHED,
    command_for,
    files_of,
    is_there,
    missing_set_error,
    publishers_split,
)
from diffclip.errors import Fault, InputError, explain_errors, require_group
from diffclip.files import digest_of

# Sets without splits: the number or the share of training images of each class; the other images are for testing.
# As in TFDS: 30 per class of Caltech-101; of SUN397 76,128 to train and 10,875 to validate, 21,750 to test.
_TRAIN_IMAGES: dict[str, int | float] = {"caltech101": 30, "sun397": 0.8}
# Number of classes of a complete set, if it has not all of ImageNet's.
_CLASSES = {"imagenet-a": 200, "imagenet-r": 200}
# Number of test images of a complete set.
_IMAGES = {
    "imagenet1k": 50_000,
    "imagenetv2": 10_000,
    "imagenet-a": 7_500,
    "imagenet-r": 30_000,
    "imagenet_sketch": 50_889,
}


def open_files(name: str, split: str, folder: Path) -> EvaluationSet:
    """Open one split from files in `folder` that are not shards. Raise `InputError` if the split is missing or
    incomplete, or if clip_benchmark is needed but not installed."""
    if not is_there(name, split, folder):
        raise missing_set_error(name, folder.parent, split)
    files = files_of(name, split, folder)
    match PUBLISHED[name].reader:
        case "pairs":
            raise InputError(f"{name} is a set of pairs: try --task mmvp")
        case "choices":
            return open_choices(name, folder)
        case "builder":
            return _open_with_builder(name, split, folder)
        case "captions":
            return _open_captioned(name, split, *files)
        case "classes":
            return _open_class_folders(name, split, *files)


def _open_class_folders(name: str, split: str, folder: Path) -> EvaluationSet:
    """Open the images in the class folders of `folder`: ImageNet, or a shifted version of it."""
    from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES
    from timm.data import ImageNetInfo

    names = map(str, range(1000)) if name == "imagenetv2" else ImageNetInfo().label_names()
    numbers = {class_name: number for number, class_name in enumerate(names)}
    folders = [path.name for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name)]
    if foreign := sorted(set(folders) - set(numbers)):
        raise InputError(f"{folder / foreign[0]} is not a class of {name}: move it out of {folder}")
    if len(folders) != (classes := _CLASSES.get(name, 1000)):
        raise InputError(f"{folder} has {len(folders)} class folders, {name} has {classes}: fetch it again")
    folders.sort(key=numbers.__getitem__)
    images = {
        f"{class_name}/{file}": label
        for label, class_name in enumerate(folders)
        for file in sorted(os.listdir(folder / class_name))
        if file.lower().endswith(SUFFIXES) and not is_hidden(file)
    }
    classnames = [IMAGENET_CLASSNAMES[numbers[class_name]] for class_name in folders]
    templates = [template("{c}") for template in OPENAI_IMAGENET_TEMPLATES]
    source, labels = FolderSource(folder, list(images)), list(images.values())
    indices = list(range(len(images)))
    data = EvaluationSet(name, split, "classification", classnames, templates, source, indices, labels)
    if split == "test" and len(data) != _IMAGES[name]:
        reason = f"has {len(data):,} images, {name} has {_IMAGES[name]:,}: fetch it again"
        data.faults.append(Fault(str(folder), reason, "note"))
    return data


def _open_captioned(name: str, split: str, folder: Path, file: Path) -> EvaluationSet:
    """Open the images that have captions in `file`. Missing images are left out and added to `faults`."""
    entries = read_captions(file).captions
    source, texts = FolderSource(folder, list(entries)), list(entries.values())
    exists = [(folder / image).is_file() for image in entries]
    faults = [Fault(source.name(i), "is missing") for i, is_file in enumerate(exists) if not is_file]
    indices = [i for i, is_file in enumerate(exists) if is_file and texts[i]]
    if not indices:
        raise InputError(f"not one image in {folder} has a caption in {file.name}: fetch the set again")
    captions = [texts[i] for i in indices]
    return EvaluationSet(name, split, "retrieval", [], [], source, indices, captions=captions, faults=faults)


def _open_with_builder(name: str, split: str, folder: Path) -> EvaluationSet:
    """Open a set with clip_benchmark's builder."""
    require_group("eval", "clip_benchmark", "requests", "scipy")
    from clip_benchmark.datasets.builder import build_dataset

    advice = f"remove it and fetch it again, {command_for(name, folder.parent)}"
    # damaged lists and pickles raise nearly any error
    with warnings.catch_warnings(), explain_errors(f"{name} in {folder} cannot be read", advice):
        # the builder warns that it knows no splits of Caltech-101 and SUN397; `draw_split` makes them
        warnings.simplefilter("ignore")
        split_name = publishers_split(name, split)
        dataset: Any = build_dataset(name, root=str(folder), split=split_name, download=False)
    # torchvision's names for the list of labels (`y`: Caltech-101) and the list of files
    targets = next(getattr(dataset, name) for name in ("targets", "_labels", "y") if hasattr(dataset, name))
    files = getattr(dataset, "_image_files", None) or getattr(dataset, "_images", None)
    labels, classnames = [int(label) for label in targets], [str(text) for text in dataset.classes]
    if absent := set(range(len(classnames))) ^ set(labels):
        raise InputError(f"{name} in {folder} has no image or no name of its class {min(absent)}: {advice}")
    indices = list(range(len(labels)))
    keys = [os.path.relpath(file, folder) for file in files] if files else [f"{i:07d}" for i in indices]
    if name in _TRAIN_IMAGES:
        indices = draw_split(keys, labels, split, _TRAIN_IMAGES[name])
    source, templates = FolderSource(folder, keys, dataset), list(dataset.templates)
    chosen = [labels[i] for i in indices]
    return EvaluationSet(name, split, "classification", classnames, templates, source, indices, chosen)


def draw_split(keys: list[str], labels: list[int], split: str, train: int | float) -> list[int]:
    """Draw a split of a set without splits: `train` images (or that share) of each class to train, the others to test.
    Return the numbers of the split's images, in the order of their keys.

    The draw depends only on the order of the keys and on the label of the class. At least one image of each class is
    in the test split.
    """
    order = sorted(range(len(keys)), key=keys.__getitem__)
    members: dict[int, list[int]] = {}
    for i in order:
        members.setdefault(labels[i], []).append(i)
    chosen: set[int] = set()
    for label, numbers in members.items():
        shuffled = np.random.default_rng([0, label]).permutation(numbers).tolist()
        count = min(train if isinstance(train, int) else round(train * len(numbers)), len(numbers) - 1)
        chosen.update(shuffled[:count] if split == "train" else shuffled[count:])
    return [i for i in order if i in chosen]


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
    """Open a folder in SugarCrepe's layout (Hsieh et al. 2023) as the set `name`, whose split is `test`.

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

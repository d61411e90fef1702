"""ImageNet and its shifts as folders of pictures, a class each: by synset, or for V2 by the number of the class.

Labels come from the names of the folders, never from their order, and the class names are the 1000 of OpenAI's CLIP
(those that clip_benchmark uses too), of which ImageNet-A and -R keep the 200 that they have folders of.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from diffclip.data.evaluation_set import EvaluationSet, check_several
from diffclip.data.images import SUFFIXES
from diffclip.data.sources import FileSource
from diffclip.errors import InputError

NUMBERED = "imagenetv2"
# Sets that lack a class are not whole. Any other folder of synsets is a set of its own classes.
_CLASSES = {"imagenet1k": 1000, NUMBERED: 1000, "imagenet_sketch": 1000, "imagenet-a": 200, "imagenet-r": 200}
_SYNSET, _NUMBER = re.compile(r"n\d{8}"), re.compile(r"\d{1,3}")


def class_folder(name: str, place: Path, split: str, inside: Sequence[str] = (".",)) -> Path | None:
    """The folder below `place` that holds the class folders of a split, None where none does.

    ImageNet's split `test` is what its publisher calls `val`.
    """
    if name == "imagenet1k":
        inside = ("train",) if split == "train" else ("val", ".")
    pattern = _NUMBER if name == NUMBERED else _SYNSET
    for candidate in (place / folder for folder in inside):
        if candidate.is_dir() and any(pattern.fullmatch(folder) for folder in _folders(candidate)):
            return candidate
    return None


def class_folder_set(name: str, split: str, folder: Path) -> EvaluationSet:
    """The pictures in the class folders of `folder`.

    Raises:
        InputError: a folder that is no class, a class without pictures, or one of the published sets without all of
            its classes.
    """
    from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES
    from timm.data import ImageNetInfo

    synsets = ImageNetInfo().label_names()
    numbers = {str(number): number for number in range(len(synsets))}
    known = numbers if name == NUMBERED else {synset: number for number, synset in enumerate(synsets)}
    folders = _folders(folder)
    foreign = [found for found in folders if found not in known]
    if foreign:
        what = "the number of a class, 0 to 999" if name == NUMBERED else "one of ImageNet's 1000 synsets"
        raise InputError(f"{folder / foreign[0]} is not {what}: move it out of {folder}")
    wanted = _CLASSES.get(name, len(folders))
    if len(folders) != wanted:
        raise InputError(f"{folder} has {len(folders)} class folders, {name} has {wanted}: fetch it again")
    folders.sort(key=known.__getitem__)
    files, labels = [], []
    for label, found in enumerate(folders):
        pictures = _pictures(folder / found)
        if not pictures:
            raise InputError(f"{folder / found} has no picture: a class of {name} is empty, fetch it again")
        files += [f"{found}/{picture}" for picture in pictures]
        labels += [label] * len(pictures)
    classnames = [IMAGENET_CLASSNAMES[known[found]] for found in folders]
    check_several(classnames, str(folder))
    templates = [template("{c}") for template in OPENAI_IMAGENET_TEMPLATES]
    source = FileSource(folder, files)
    return EvaluationSet(
        name, split, "classification", classnames, templates, source, list(range(len(files))), labels
    )


def _folders(folder: Path) -> list[str]:
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def _pictures(folder: Path) -> list[str]:
    names = (name for name in os.listdir(folder) if name.lower().endswith(SUFFIXES))
    return sorted(name for name in names if not name.startswith("."))

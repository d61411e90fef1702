"""Flickr8k, Flickr30k and COCO as published: folders of pictures beside the captions of the Karpathy splits.

The files of captions are those of clip_benchmark (mehdidc/retrieval_annotations): `NAME.jpg,CAPTION` lines under a
header for Flickr, COCO's own JSON for COCO.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.samples import Fault
from diffclip.data.sources import FileSource
from diffclip.errors import InputError

_COCO = "mscoco_captions"


def annotation_file(name: str, place: Path, split: str) -> Path:
    """The captions of one split, in the folder `place` of the set."""
    return place / (f"coco_{split}_karpathy.json" if name == _COCO else f"{name}_{split}_karpathy.txt")


def caption_file_set(name: str, split: str, place: Path, inside: Sequence[str]) -> EvaluationSet:
    """The pictures that have captions in a split; those that are missing are left out and named in `faults`.

    Args:
        inside: folders of `place` that may hold the pictures.

    Raises:
        InputError: the captions cannot be read, or not one of their pictures is there.
    """
    file = annotation_file(name, place, split)
    found = _coco(file) if name == _COCO else _flickr(file)
    captions = {picture: [text.strip() for text in texts if text.strip()] for picture, texts in found.items()}
    if not captions:
        raise InputError(f"{file} has no caption: fetch it again")
    folder = next((place / one for one in inside if _any_there(place / one, captions)), None)
    if folder is None:
        raise InputError(
            f"not one of the {len(captions)} pictures that {file.name} names is in {place}: put them there"
        )
    files = list(captions)
    source = FileSource(folder, files)
    indices, faults = [], []
    for i, picture in enumerate(files):
        if not (folder / picture).is_file():
            faults.append(Fault(source.name(i), "is missing"))
        elif not captions[picture]:
            faults.append(Fault(source.name(i), f"has no caption in {file.name}"))
        else:
            indices.append(i)
    if not indices:
        raise InputError(f"not one picture in {folder} has a caption in {file.name}: fetch it again")
    own = [captions[files[i]] for i in indices]
    return EvaluationSet(name, split, "retrieval", [], [], source, indices, captions=own, faults=faults)


def _any_there(folder: Path, files: dict[str, list[str]]) -> bool:
    if not folder.is_dir():
        return False
    there = set(os.listdir(folder))
    return any(file in there for file in files)


def _flickr(file: Path) -> dict[str, list[str]]:
    """The captions by picture; a comma may be in a caption, but not in the name of a picture."""
    captions: dict[str, list[str]] = {}
    for number, line in enumerate(_text(file).split("\n"), 1):
        if number == 1 or not line.strip():
            continue
        picture, comma, caption = line.strip().partition(",")
        if not comma or not _is_name(picture):
            raise InputError(f"{file}, line {number}: {line.strip()[:40]!r} is not NAME.jpg,CAPTION")
        captions.setdefault(picture, []).append(caption)
    return captions


def _coco(file: Path) -> dict[str, list[str]]:
    """The captions by picture, pictures in the order of their numbers, as COCO's own reader has them."""
    try:
        content: Any = json.loads(_text(file))
        names = {image["id"]: image["file_name"] for image in content["images"]}
        captions: dict[str, list[str]] = {names[number]: [] for number in sorted(names)}
        for annotation in content["annotations"]:
            captions[names[annotation["image_id"]]].append(annotation["caption"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"{file} is not COCO's JSON of captions ({reason}): fetch it again") from error
    if not all(isinstance(text, str) for texts in captions.values() for text in texts):
        raise InputError(f"{file} has a caption that is no text: fetch it again")
    odd = [name for name in captions if not _is_name(name)]
    if odd:
        raise InputError(
            f"{file} names a picture {str(odd[0])[:40]!r}, which is no file name: fetch it again"
        )
    return captions


def _is_name(text: object) -> bool:
    return isinstance(text, str) and text == os.path.basename(text) and text not in ("", ".", "..")


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except (UnicodeDecodeError, OSError) as error:
        raise InputError(f"cannot read {file} ({error}): it should be UTF-8 text") from error

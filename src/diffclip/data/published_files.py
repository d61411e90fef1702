"""A split of a published set from ROOT/NAME, where its files lie as torchvision or the publisher lays them out.

Where clip_benchmark has a builder for such files it is asked, so that the class names, templates and images are its
own. ImageNet and its shifts are folders of images, a class each: by synset, or for V2 by the number of the class; the
labels come from the names of the folders, never from their order, and the class names are the 1000 of OpenAI's CLIP, of
which ImageNet-A and -R keep the 200 that they have folders of. Flickr and COCO are a folder of images beside the
captions of the Karpathy splits. Nothing is ever downloaded here.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffclip.data.captions import read_coco, read_karpathy
from diffclip.data.evaluation_set import EvaluationSet, check_several
from diffclip.data.images import SUFFIXES
from diffclip.data.published_sets import (
    NUMBERED,
    annotation_file,
    class_folder,
    command_for,
    folders_in,
    is_there,
    not_there,
    published,
)
from diffclip.data.samples import Fault
from diffclip.data.sources import DatasetSource, FileSource, labels_of
from diffclip.errors import InputError, require_group

# Our names of the splits of the files, where the builders have others.
_BUILDER_SPLITS = {("pets", "train"): "trainval"}
# Images of each class to learn from, or their share, where the files come without a split; the others are tested on.
# As in TFDS's splits: 30 a class of Caltech-101; of SUN397 76,128 to train and 10,875 to validate, 21,750 to test.
_DRAWN: dict[str, int | float] = {"caltech101": 30, "sun397": 0.8}
# Sets that lack a class are not whole. Any other folder of synsets is a set of its own classes.
_CLASSES = {"imagenet1k": 1000, NUMBERED: 1000, "imagenet_sketch": 1000, "imagenet-a": 200, "imagenet-r": 200}
_HINT = " You can use download=True to download it"


def open_files(name: str, split: str, place: Path) -> EvaluationSet:
    """Open one split from files in `place` that are no shards.

    Raises:
        InputError: no such set or split; it is not there, or not whole; clip_benchmark is needed and missing.
    """
    entry = published(name)
    if not is_there(name, split, place):
        raise not_there(name, place.parent)
    if entry.layout == "mmvp":
        raise InputError(f"{name} is a set of pairs: try --task mmvp")
    if entry.layout == "torchvision":
        return _built(name, split, place)
    if entry.layout in ("flickr", "coco"):
        return _captioned(name, split, place, entry.inside)
    folder = class_folder(name, place, split, entry.inside)
    if folder is None:
        raise not_there(name, place.parent)
    return class_folder_set(name, split, folder)


def class_folder_set(name: str, split: str, folder: Path) -> EvaluationSet:
    """Open the images in the class folders of `folder`.

    Raises:
        InputError: a folder that is no class, a class without images, or one of the published sets without all of
            its classes.
    """
    from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES
    from timm.data import ImageNetInfo

    synsets = ImageNetInfo().label_names()
    numbers = {str(number): number for number in range(len(synsets))}
    known = numbers if name == NUMBERED else {synset: number for number, synset in enumerate(synsets)}
    folders = folders_in(folder)
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
        images = sorted(
            image for image in os.listdir(folder / found) if re.fullmatch(r"[^.].*", image)
            and image.lower().endswith(SUFFIXES)
        )  # fmt: skip
        if not images:
            raise InputError(f"{folder / found} has no image: a class of {name} is empty, fetch it again")
        files += [f"{found}/{image}" for image in images]
        labels += [label] * len(images)
    classnames = [IMAGENET_CLASSNAMES[known[found]] for found in folders]
    check_several(classnames, str(folder))
    templates = [template("{c}") for template in OPENAI_IMAGENET_TEMPLATES]
    source = FileSource(folder, files)
    indices = list(range(len(files)))
    return EvaluationSet(name, split, "classification", classnames, templates, source, indices, labels)


def _captioned(name: str, split: str, place: Path, inside: Sequence[str]) -> EvaluationSet:
    """Open the images that have captions in a split; those that are missing are left out and named in `faults`."""
    file = annotation_file(name, place, split)
    found = read_coco(file) if published(name).layout == "coco" else read_karpathy(file)
    captions = {image: [text for text in texts if text] for image, texts in found.items()}
    odd = [image for image in captions if image != os.path.basename(image)]
    if odd or not captions:
        why = f"names an image {odd[0][:40]!r}, which is no file name" if odd else "has no caption"
        raise InputError(f"{file} {why}: fetch it again")
    folders = [place / one for one in inside if (place / one).is_dir()]
    folder = next((one for one in folders if not captions.keys().isdisjoint(os.listdir(one))), None)
    if folder is None:
        raise InputError(
            f"not one of the {len(captions)} images that {file.name} names is in {place}: put them there"
        )
    files = list(captions)
    source = FileSource(folder, files)
    indices, faults = [], []
    for i, image in enumerate(files):
        if not (folder / image).is_file():
            faults.append(Fault(source.name(i), "is missing"))
        elif not captions[image]:
            faults.append(Fault(source.name(i), f"has no caption in {file.name}"))
        else:
            indices.append(i)
    if not indices:
        raise InputError(f"not one image in {folder} has a caption in {file.name}: fetch it again")
    own = [captions[files[i]] for i in indices]
    return EvaluationSet(name, split, "retrieval", [], [], source, indices, captions=own, faults=faults)


def _built(name: str, split: str, place: Path) -> EvaluationSet:
    dataset = build(name, split, place)
    labels = labels_of(dataset)
    classnames = [str(text) for text in dataset.classes]
    absent = sorted(set(range(len(classnames))).symmetric_difference(labels))
    if absent:
        which = repr(classnames[absent[0]]) if absent[0] < len(classnames) else f"number {absent[0]}"
        said = "has no image" if absent[0] < len(classnames) else "has no name"
        raise InputError(
            f"{name} in {place} is not whole, its class {which} {said}: remove it and fetch it again, "
            f"{command_for(name, place.parent)}"
        )
    source = DatasetSource(dataset, place)
    indices = list(range(len(source)))
    if name in _DRAWN:
        indices = drawn_split([source.key(i) for i in indices], labels, split, _DRAWN[name])
    own = [labels[i] for i in indices]
    templates = list(dataset.templates)
    return EvaluationSet(name, split, "classification", classnames, templates, source, indices, own)


def build(name: str, split: str, place: Path, download: bool = False) -> Any:
    """Ask clip_benchmark's builder for the set in `place`, after a download if asked for.

    Its items are a PIL image and a label, and it has the class names and templates.

    Raises:
        InputError: clip_benchmark is not installed, or it cannot read the files (`download` is False).
    """
    require_group("eval", "clip_benchmark", "requests", "scipy")
    from clip_benchmark.datasets.builder import build_dataset

    split = _BUILDER_SPLITS.get((name, split), split)
    with warnings.catch_warnings():
        # that the builder knows no split of Caltech-101 and SUN397, of which we make our own
        warnings.simplefilter("ignore")
        if download:
            return build_dataset(name, root=str(place), split=split, download=True)
        try:
            return build_dataset(name, root=str(place), split=split, download=False)
        # Lists and pickles that are damaged make it raise nearly anything.
        except Exception as error:
            reason = (" ".join(str(error).split()) or type(error).__name__).removesuffix(_HINT)
            raise InputError(
                f"{name} in {place} cannot be read ({reason}): remove it and fetch it again, "
                f"{command_for(name, place.parent)}"
            ) from error


def drawn_split(keys: list[str], labels: list[int], split: str, train: int | float) -> list[int]:
    """Draw a split of a set without one: `train` images of each class (or that share) to learn from, others to test on.

    The draw depends on the order of the keys and the number of the class alone. A class that is too small keeps one
    image to test on.

    Returns:
        The numbers of the split's images, in the order of their keys.
    """
    order = sorted(range(len(keys)), key=keys.__getitem__)
    members: dict[int, list[int]] = {}
    for i in order:
        members.setdefault(labels[i], []).append(i)
    chosen: set[int] = set()
    for label, own in members.items():
        drawn = np.random.default_rng([0, label]).permutation(len(own)).tolist()
        learned = min(train if isinstance(train, int) else round(train * len(own)), len(own) - 1)
        picked = drawn[:learned] if split == "train" else drawn[learned:]
        chosen.update(own[place] for place in picked)
    return [i for i in order if i in chosen]

"""A split of a published set from ROOT/NAME, where its files lie as torchvision or the publisher lays them out.

Where clip_benchmark has a builder for such files it is asked, so that the class names, templates and pictures are
its own. Nothing is ever downloaded here.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from diffclip.data.caption_files import caption_file_set
from diffclip.data.class_folders import class_folder, class_folder_set
from diffclip.data.evaluation_set import EvaluationSet
from diffclip.data.published_sets import command_for, is_there, not_there, published
from diffclip.data.sources import DatasetSource, labels_of
from diffclip.errors import InputError, require_group

# What we call the splits of the files, where the builders say otherwise.
_BUILDER_SPLITS = {("pets", "train"): "trainval"}
# Pictures of each class to train and to test on, where the files come without a split: as many as in TFDS's split of
# Caltech-101, which tests on all others, and in each of the ten official partitions of SUN397.
_DRAWN: dict[str, tuple[int, int | None]] = {"caltech101": (30, None), "sun397": (50, 50)}


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
        return caption_file_set(name, split, place, entry.inside)
    folder = class_folder(name, place, split, entry.inside)
    if folder is None:
        raise not_there(name, place.parent)
    return class_folder_set(name, split, folder)


def _built(name: str, split: str, place: Path) -> EvaluationSet:
    dataset = build(name, split, place)
    labels = labels_of(dataset)
    classnames = [str(text) for text in dataset.classes]
    absent = sorted(set(range(len(classnames))).symmetric_difference(labels))
    if absent:
        which = repr(classnames[absent[0]]) if absent[0] < len(classnames) else f"number {absent[0]}"
        said = "has no picture" if absent[0] < len(classnames) else "has no name"
        raise InputError(
            f"{name} in {place} is not whole, its class {which} {said}: remove it and fetch it again, "
            f"{command_for(name, place.parent)}"
        )
    source = DatasetSource(dataset, place)
    indices = list(range(len(source)))
    if name in _DRAWN:
        indices = drawn_split([source.key(i) for i in indices], labels, split, *_DRAWN[name])
    own = [labels[i] for i in indices]
    templates = list(dataset.templates)
    return EvaluationSet(name, split, "classification", classnames, templates, source, indices, own)


def build(name: str, split: str, place: Path, download: bool = False) -> Any:
    """What clip_benchmark's builder makes of `place`, after a download if asked for.

    Its items are a PIL picture and a label, and it has the class names and templates.

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


_HINT = " You can use download=True to download it"


def drawn_split(keys: list[str], labels: list[int], split: str, train: int, test: int | None) -> list[int]:
    """A split of a set that has none: `train` pictures of each class to learn from, `test` others to test on.

    The draw depends on the order of the keys and the number of the class alone. With `test` None all that are not
    learnt from are tested on, and a class that is too small keeps one for that; else it gives half to each.

    Returns:
        The numbers of the split's pictures, in the order of their keys.
    """
    order = sorted(range(len(keys)), key=keys.__getitem__)
    members: dict[int, list[int]] = {}
    for i in order:
        members.setdefault(labels[i], []).append(i)
    chosen: set[int] = set()
    for label, own in members.items():
        drawn = np.random.default_rng([0, label]).permutation(len(own)).tolist()
        learnt = min(train, len(own) - 1 if test is None else len(own) // 2)
        tested = len(own) - learnt if test is None else min(test, len(own) - learnt)
        picked = drawn[:learnt] if split == "train" else drawn[learnt : learnt + tested]
        chosen.update(own[place] for place in picked)
    return [i for i in order if i in chosen]

"""The files of published sets in ROOT/NAME, as torchvision or the publisher lays them out: fetch and open them.

Where clip_benchmark has a builder for such files it is asked, so that the class names, templates and images are its
own. ImageNet and its shifts are folders of images, a class each: by synset, or for V2 by the number of the class; the
labels come from the names of the folders, never from their order, and the class names are the 1000 of OpenAI's CLIP, of
which ImageNet-A and -R keep the 200 that they have folders of. Flickr and COCO are a folder of images beside the
captions of the Karpathy splits. Opening a set never downloads anything.
"""

from __future__ import annotations

import errno
import os
import tempfile
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diffclip.data.captions import read_coco, read_karpathy
from diffclip.data.evaluation_set import EvaluationSet, FolderSource
from diffclip.data.images import SUFFIXES
from diffclip.data.published_sets import (
    PublishedSet,
    annotation_file,
    class_folder,
    command_for,
    folders_in,
    is_there,
    not_there,
    place_of,
    published,
)
from diffclip.errors import DiffCLIPError, Fault, InputError, require_group
from diffclip.files import disk_errors

# Images of each class to learn from, or their share, where the files come without a split; the others are tested on.
# As in TFDS's splits: 30 a class of Caltech-101; of SUN397 76,128 to train and 10,875 to validate, 21,750 to test.
_DRAWN: dict[str, int | float] = {"caltech101": 30, "sun397": 0.8}
# Sets that lack a class are not whole.
_CLASSES = {
    "imagenet1k": 1000,
    "imagenetv2": 1000,
    "imagenet_sketch": 1000,
    "imagenet-a": 200,
    "imagenet-r": 200,
}
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
    return _class_folders(name, split, class_folder(name, place, split, entry.inside) or place)


def _class_folders(name: str, split: str, folder: Path) -> EvaluationSet:
    """Open the images in the class folders of `folder`: ImageNet, or a shifted version of it."""
    from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES
    from timm.data import ImageNetInfo

    numbered = name == "imagenetv2"
    names = map(str, range(1000)) if numbered else ImageNetInfo().label_names()
    known = {class_name: number for number, class_name in enumerate(names)}
    folders = folders_in(folder)
    foreign = [found for found in folders if found not in known]
    if foreign:
        what = "the number of a class, 0 to 999" if numbered else "one of ImageNet's 1000 synsets"
        raise InputError(f"{folder / foreign[0]} is not {what}: move it out of {folder}")
    if len(folders) != _CLASSES[name]:
        raise InputError(
            f"{folder} has {len(folders)} class folders, {name} has {_CLASSES[name]}: fetch it again"
        )
    folders.sort(key=known.__getitem__)
    files: list[str] = []
    labels: list[int] = []
    for label, found in enumerate(folders):
        images = sorted(
            image
            for image in os.listdir(folder / found)
            if image.lower().endswith(SUFFIXES) and image[0] != "."
        )
        if not images:
            raise InputError(f"{folder / found} has no image: a class of {name} is empty, fetch it again")
        files += [f"{found}/{image}" for image in images]
        labels += [label] * len(images)
    classnames = [IMAGENET_CLASSNAMES[known[found]] for found in folders]
    templates = [template("{c}") for template in OPENAI_IMAGENET_TEMPLATES]
    source, indices = FolderSource(folder, files), list(range(len(files)))
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
    source = FolderSource(folder, list(captions))
    indices, faults = [], []
    for i, image in enumerate(captions):
        if not (folder / image).is_file():
            faults.append(Fault(source.name(i), "is missing"))
        elif not captions[image]:
            faults.append(Fault(source.name(i), f"has no caption in {file.name}"))
        else:
            indices.append(i)
    if not indices:
        raise InputError(f"not one image in {folder} has a caption in {file.name}: fetch it again")
    own = [captions[source.keys[i]] for i in indices]
    return EvaluationSet(name, split, "retrieval", [], [], source, indices, captions=own, faults=faults)


def _built(name: str, split: str, place: Path) -> EvaluationSet:
    dataset = build(name, split, place)
    # torchvision's names of the lists of labels (`y`: Caltech-101) and of files
    kept = next(getattr(dataset, name) for name in ("targets", "_labels", "y") if hasattr(dataset, name))
    files = getattr(dataset, "_image_files", None) or getattr(dataset, "_images", None)
    labels = [int(label) for label in kept]
    classnames = [str(text) for text in dataset.classes]
    absent = sorted(set(range(len(classnames))).symmetric_difference(labels))
    if absent:
        which = repr(classnames[absent[0]]) if absent[0] < len(classnames) else f"number {absent[0]}"
        said = "has no image" if absent[0] < len(classnames) else "has no name"
        raise InputError(
            f"{name} in {place} is not whole, its class {which} {said}: remove it and fetch it again, "
            f"{command_for(name, place.parent)}"
        )
    indices = list(range(len(labels)))
    keys = [os.path.relpath(file, place) for file in files] if files else [f"{i:07d}" for i in indices]
    source = FolderSource(place, keys, dataset)
    if name in _DRAWN:
        indices = drawn_split(keys, labels, split, _DRAWN[name])
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

    if (name, split) == ("pets", "train"):
        split = "trainval"
    with warnings.catch_warnings():
        # that the builder knows no split of Caltech-101 and SUN397, of which we make our own
        warnings.simplefilter("ignore")
        try:
            return build_dataset(name, root=str(place), split=split, download=download)
        # Lists and pickles that are damaged make it raise nearly anything.
        except Exception as error:
            if download:
                raise
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


def check_fetch(names: Sequence[str], root: str | Path) -> None:
    """Raise `InputError` where something is in the way of one of the sets `names`."""
    for name in names:
        place = place_of(name, root)
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise InputError(
                f"{place} is in the way, it does not hold a whole {published(name).title}: move it or give another root"
            )


def fetch(name: str, root: str | Path) -> Path:
    """Fetch one set that needs no one's help; it is complete where it lies in ROOT/NAME, which is returned.

    Raises:
        InputError: the disk refuses, or clip_benchmark is needed and not installed.
        DiffCLIPError: the publisher cannot be reached, or the files are broken.
    """
    entry, place = published(name), place_of(name, root)
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=place.parent, prefix=f".{name}.", ignore_cleanup_errors=True
        ) as made:
            whole = Path(made, "whole")
            whole.mkdir()
            try:
                _fetch(name, entry, whole)
            except (InputError, PermissionError):
                raise
            # Networks, archives and checksums fail in as many ways as there are libraries in between.
            except Exception as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise unreachable(f"{name} from {entry.home}", error) from error
            os.replace(whole, place)
    return place


def unreachable(what: str, error: Exception) -> DiffCLIPError:
    """The error for a download that failed."""
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DiffCLIPError(f"cannot fetch {what} ({reason}): check the network and start again")


def _fetch(name: str, entry: PublishedSet, place: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive, download_url, extract_archive

    if entry.layout == "mmvp":
        from huggingface_hub import snapshot_download

        snapshot_download("MMVP/MMVP_VLM", repo_type="dataset", local_dir=place)
    elif not entry.archives:
        build(name, entry.splits[0], place, download=True)
    for address in entry.archives:
        if address.endswith(".json"):
            download_url(address, place)
        else:
            download_and_extract_archive(address, place, remove_finished=True)
    if name == "caltech101":
        inner = place / "caltech-101" / "101_ObjectCategories.tar.gz"
        extract_archive(inner, place / "caltech101", remove_finished=True)
    for pattern in ("*.tar.gz", "*.tgz"):
        for archive in [*place.glob(pattern), *place.glob(f"*/{pattern}")]:
            archive.unlink()

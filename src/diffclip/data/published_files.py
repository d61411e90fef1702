"""The files of published sets in ROOT/NAME, as torchvision or the publisher packs them: fetch and open them.

clip_benchmark's builders read what torchvision fetches, so that class names, templates and images are theirs. ImageNet
and its shifts are folders of images, a class each; a label comes from the name of the folder, and the class names are
the 1000 of OpenAI's CLIP, of which ImageNet-A and -R keep their 200. (The builders of these sets start a download while
they open one, and miss no class that is missing.) Opening a set here never downloads anything.
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
    PUBLISHED,
    command_for,
    files_of,
    is_there,
    not_there,
    place_of,
    publishers_split,
)
from diffclip.data.sugarcrepe import open_choices
from diffclip.errors import DiffCLIPError, Fault, InputError, require_group
from diffclip.files import disk_errors

# Images of each class to learn from, or their share, where the files come without a split; the others are tested on.
# As in TFDS's splits: 30 a class of Caltech-101; of SUN397 76,128 to train and 10,875 to validate, 21,750 to test.
_DRAWN: dict[str, int | float] = {"caltech101": 30, "sun397": 0.8}
# Classes of a set that is whole, if they are not all of ImageNet's.
_CLASSES = {"imagenet-a": 200, "imagenet-r": 200}
# Test images of a set that is whole.
_IMAGES = {
    "imagenet1k": 50_000,
    "imagenetv2": 10_000,
    "imagenet-a": 7_500,
    "imagenet-r": 30_000,
    "imagenet_sketch": 50_889,
}


def open_files(name: str, split: str, place: Path) -> EvaluationSet:
    """Open one split from files in `place` that are no shards.

    Raises:
        InputError: no such set or split; it is not there, or not whole; clip_benchmark is needed and missing.
    """
    if not is_there(name, split, place):
        raise not_there(name, place.parent, split)
    reader = PUBLISHED[name].reader
    if reader == "pairs":
        raise InputError(f"{name} is a set of pairs: try --task mmvp")
    if reader == "choices":
        return open_choices(name, place)
    if reader == "builder":
        return _built(name, split, place)
    if reader == "captions":
        return _captioned(name, split, *files_of(name, split, place))
    return _class_folders(name, split, files_of(name, split, place)[0])


def _class_folders(name: str, split: str, folder: Path) -> EvaluationSet:
    """Open the images in the class folders of `folder`: ImageNet, or a shifted version of it."""
    from open_clip import IMAGENET_CLASSNAMES, OPENAI_IMAGENET_TEMPLATES
    from timm.data import ImageNetInfo

    names = map(str, range(1000)) if name == "imagenetv2" else ImageNetInfo().label_names()
    known = {class_name: number for number, class_name in enumerate(names)}
    folders = sorted(found.name for found in folder.iterdir() if found.is_dir() and found.name[0] != ".")
    if foreign := [found for found in folders if found not in known]:
        raise InputError(f"{folder / foreign[0]} is no class of {name}: move it out of {folder}")
    if len(folders) != _CLASSES.get(name, 1000):
        raise InputError(
            f"{folder} has {len(folders)} class folders, {name} has {_CLASSES.get(name, 1000)}: fetch it again"
        )
    folders.sort(key=known.__getitem__)
    files: list[str] = []
    labels: list[int] = []
    for label, found in enumerate(folders):
        inside = sorted(os.listdir(folder / found))
        images = [file for file in inside if file.lower().endswith(SUFFIXES) and file[0] != "."]
        if not images:
            raise InputError(f"{folder / found} has no image: fetch {name} again")
        files += [f"{found}/{image}" for image in images]
        labels += [label] * len(images)
    classnames = [IMAGENET_CLASSNAMES[known[found]] for found in folders]
    templates = [template("{c}") for template in OPENAI_IMAGENET_TEMPLATES]
    source, indices = FolderSource(folder, files), list(range(len(files)))
    data = EvaluationSet(name, split, "classification", classnames, templates, source, indices, labels)
    if split == "test" and len(data) != _IMAGES[name]:
        reason = f"has {len(data):,} images, {name} has {_IMAGES[name]:,}: fetch it again"
        data.faults.append(Fault(str(folder), reason, "note"))
    return data


def _captioned(name: str, split: str, folder: Path, file: Path) -> EvaluationSet:
    """Open the images that have captions in `file`; those that are missing are left out and named in `faults`."""
    found = read_coco(file) if file.suffix == ".json" else read_karpathy(file)
    captions = {image: [text for text in texts if text] for image, texts in found.items()}
    odd = [image for image in captions if image != os.path.basename(image)]
    if odd:
        raise InputError(f"{file} names an image {odd[0][:40]!r}, which is no file name: fetch it again")
    source = FolderSource(folder, list(captions))
    faults = [Fault(source.name(i), "is missing") for i in range(len(source)) if not _is_file(source, i)]
    indices = [i for i, image in enumerate(captions) if captions[image] and _is_file(source, i)]
    if not indices:
        raise InputError(f"not one image in {folder} has a caption in {file.name}: fetch the set again")
    own = [captions[source.keys[i]] for i in indices]
    return EvaluationSet(name, split, "retrieval", [], [], source, indices, captions=own, faults=faults)


def _is_file(source: FolderSource, i: int) -> bool:
    return (source.folder / source.keys[i]).is_file()


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

    split = publishers_split(name, split)
    with warnings.catch_warnings():
        # that the builder knows no split of Caltech-101 and SUN397, of which we make our own
        warnings.simplefilter("ignore")
        try:
            return build_dataset(name, root=str(place), split=split, download=download)
        # Lists and pickles that are damaged make it raise nearly anything.
        except Exception as error:
            if download:
                raise
            reason = " ".join(str(error).split()).partition(" You can use download=True")[0]
            raise InputError(
                f"{name} in {place} cannot be read ({reason or type(error).__name__}): remove it and fetch it "
                f"again, {command_for(name, place.parent)}"
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
                f"{place} is in the way and holds no whole {PUBLISHED[name].title}: move it or give another root"
            )


def fetch(name: str, root: str | Path) -> Path:
    """Fetch one set into ROOT/NAME, which appears whole and is returned.

    Raises:
        InputError: the disk refuses, or clip_benchmark is needed and not installed.
        DiffCLIPError: the publisher cannot be reached, or the files are broken.
    """
    place = place_of(name, root)
    with disk_errors(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=place.parent, prefix=f".{name}.", ignore_cleanup_errors=True
        ) as made:
            whole = Path(made, "whole")
            whole.mkdir()
            try:
                _fetch(name, whole)
            except (InputError, PermissionError):
                raise
            # Networks, archives and checksums fail in as many ways as there are libraries in between.
            except Exception as error:
                if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                    raise
                raise unreachable(f"{name} from {PUBLISHED[name].home}", error) from error
            os.replace(whole, place)
    return place


def unreachable(what: str, error: Exception) -> DiffCLIPError:
    """Make the error for a download that failed."""
    reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
    return DiffCLIPError(f"cannot fetch {what} ({reason}): check the network and start again")


def _fetch(name: str, place: Path) -> None:
    from torchvision.datasets.utils import download_and_extract_archive, download_url, extract_archive

    entry = PUBLISHED[name]
    if entry.reader == "pairs":
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

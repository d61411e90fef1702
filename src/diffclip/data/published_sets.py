"""The published sets that the paper measures on: names, sizes, places, and the commands that fetch them.

ROOT/NAME is where a set lies, NAME as LAION-AI/CLIP_benchmark calls it (`datasets/builder.py`). In it are either
shards in clip_benchmark's layout (`SPLIT/0.tar`), or the files as torchvision or the publisher lays them out.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from diffclip.errors import InputError, unknown

Layout = Literal["torchvision", "synsets", "numbers", "flickr", "coco", "mmvp"]

HUB = "https://huggingface.co/datasets"
_CIFAR = "https://www.cs.toronto.edu/~kriz/cifar.html"
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
_CALTECH = "https://data.caltech.edu/records/mzrjq-6wc02"
_CAPTIONS = "https://github.com/mehdidc/retrieval_annotations/releases/download/1.0.0"
_TWO, _THREE = ("train", "test"), ("train", "val", "test")


@dataclass(frozen=True)
class PublishedSet:
    """A published set to evaluate on.

    Attributes:
        title: its usual name.
        size: what must be downloaded, about, in bytes.
        home: the publisher's page.
        layout: how its files lie in ROOT/NAME, if they are no shards.
        splits: those that can be opened.
        inside: folders of ROOT/NAME that may hold the files; of "torchvision" all must be there.
        archives: what to fetch and unpack, where torchvision does not.
        command: shell commands for one who must fetch it by hand, with {place} for ROOT/NAME.
        wants: why it must be fetched by hand.
        shift_of: the set that it is a shifted version of.
    """

    title: str
    size: int
    home: str
    layout: Layout
    splits: tuple[str, ...] = ("test",)
    inside: tuple[str, ...] = (".",)
    archives: tuple[str, ...] = ()
    command: str = ""
    wants: str = ""
    shift_of: str | None = None


def _built(title: str, megabytes: int, home: str, splits: tuple[str, ...], *inside: str) -> PublishedSet:
    """A set that torchvision fetches and clip_benchmark's builder reads."""
    return PublishedSet(title, megabytes * 10**6, home, "torchvision", splits, inside)


def _shift(
    title: str, megabytes: int, home: str, layout: Layout, inside: Sequence[str], archive: str
) -> PublishedSet:
    """A shifted version of ImageNet, whose class folders lie in one of `inside` or in ROOT/NAME itself."""
    places = (*inside, ".")
    return PublishedSet(
        title, megabytes * 10**6, home, layout, inside=places, archives=(archive,), shift_of="imagenet1k"
    )


def _flickr(title: str, megabytes: int, kaggle: str, name: str, *inside: str) -> PublishedSet:
    command = (
        f"kaggle datasets download -d {kaggle} -p {{place}} --unzip && cd {{place}} && "
        f"curl -LO '{_CAPTIONS}/{name}_{{{{train,val,test}}}}_karpathy.txt'"
    )
    home, wants = (
        f"https://www.kaggle.com/datasets/{kaggle}",
        "Kaggle wants an account and pip install kaggle",
    )
    return PublishedSet(
        title, megabytes * 10**6, home, "flickr", _THREE, (*inside, "."), command=command, wants=wants
    )


# Sizes are those of the files that torchvision and the publishers offer.
# fmt: off
PUBLISHED = {
    "caltech101": PublishedSet("Caltech-101", 137 * 10**6, _CALTECH, "torchvision", _TWO,
                               ("caltech101/101_ObjectCategories",), (f"{_CALTECH}/files/caltech-101.zip",)),
    "cifar10": _built("CIFAR-10", 170, _CIFAR, _TWO, "cifar-10-batches-py"),
    "cifar100": _built("CIFAR-100", 169, _CIFAR, _TWO, "cifar-100-python"),
    "dtd": _built("Describable Textures", 625, f"{_OXFORD}/dtd", _THREE, "dtd/dtd"),
    "fgvc_aircraft": _built("FGVC-Aircraft", 2750, f"{_OXFORD}/fgvc-aircraft", _THREE, "fgvc-aircraft-2013b"),
    "flowers": _built("Oxford Flowers 102", 345, f"{_OXFORD}/flowers/102", _THREE, "flowers-102/jpg"),
    "food101": _built("Food-101", 5000, "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101", _TWO,
                      "food-101/images", "food-101/meta"),
    "pets": _built("Oxford-IIIT Pet", 811, f"{_OXFORD}/pets", _TWO,
                   "oxford-iiit-pet/images", "oxford-iiit-pet/annotations"),
    "sun397": _built("SUN397", 39_000, "https://vision.princeton.edu/projects/2010/SUN", _TWO, "SUN397"),
    "imagenet1k": PublishedSet(
        "ImageNet, validation images", 6_750_000_000, "https://image-net.org/download", "synsets", _TWO,
        command="cd {place} && python -c \"from torchvision.datasets import ImageNet; ImageNet('.', 'val')\"",
        wants="first sign in at https://image-net.org/download and put ILSVRC2012_img_val.tar and "
        "ILSVRC2012_devkit_t12.tar.gz into {place}"),
    "imagenetv2": _shift("ImageNet-V2, matched frequency", 1260, f"{HUB}/vaishaal/ImageNetV2", "numbers",
                         ("ImageNetV2-matched-frequency", "imagenetv2-matched-frequency-format-val"),
                         f"{HUB}/vaishaal/ImageNetV2/resolve/main/imagenetv2-matched-frequency.tar.gz"),
    "imagenet-a": _shift("ImageNet-A", 688, "https://github.com/hendrycks/natural-adv-examples", "synsets",
                         ("imagenet-a",), "https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar"),
    "imagenet-r": _shift("ImageNet-R", 2190, "https://github.com/hendrycks/imagenet-r", "synsets",
                         ("imagenet-r",), "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar"),
    "imagenet_sketch": _shift("ImageNet-Sketch", 7600, "https://github.com/HaohanWang/ImageNet-Sketch", "synsets",
                              ("sketch",), f"{HUB}/songweig/imagenet_sketch/resolve/main/data/ImageNet-Sketch.zip"),
    "flickr8k": _flickr("Flickr8k", 1100, "adityajn105/flickr8k", "flickr8k", "Images"),
    "flickr30k": _flickr("Flickr30k", 8800, "hsankesara/flickr-image-dataset", "flickr30k",
                         "flickr30k_images/flickr30k_images", "flickr30k_images"),
    "mscoco_captions": PublishedSet(
        "COCO captions, val2014", 6_650_000_000, "https://cocodataset.org", "coco", ("val", "test"), ("val2014",),
        archives=("http://images.cocodataset.org/zips/val2014.zip",
                  *(f"{_CAPTIONS}/coco_{split}_karpathy.json" for split in ("val", "test")))),
    "mmvp": PublishedSet("MMVP-VLM", 100_000_000, f"{HUB}/MMVP/MMVP_VLM", "mmvp"),
}
# fmt: on

PATTERNS = (
    "Orientation and Direction",
    "Presence of Specific Features",
    "State and Condition",
    "Quantity and Count",
    "Positional and Relational Context",
    "Color and Appearance",
    "Structural Characteristics",
    "Texts",
    "Viewpoint and Perspective",
)
"""The patterns of MMVP-VLM in the published order (Tong et al. 2024, arXiv 2401.06209; tsb0601/MMVP)."""
PAIR_IMAGES = "MLLM_VLM Images"
"""The folder of MMVP-VLM's images, as the published script names it."""

Shift = Literal["sketch", "recoloured", "noisy"]
SHIFTS: tuple[Shift, ...] = get_args(Shift)
"""The styles that the built-in scenes are drawn in beside the plain one."""
_SINGLE_OBJECTS = "scenes-shapes"


def base_of(dataset: str) -> str | None:
    """Return the set that `dataset` is a shifted version of: "imagenet1k" of "imagenet-a"; None if it is no shift."""
    if dataset in [f"{_SINGLE_OBJECTS}-{style}" for style in SHIFTS]:
        return _SINGLE_OBJECTS
    return PUBLISHED[dataset].shift_of if dataset in PUBLISHED else None


def images_of(dataset: str) -> str:
    """Return the set whose images `dataset` shows.

    The scenes by shape, by color and in every style show the same scenes in the same order.
    """
    shared = dataset == "scenes-colours" or dataset.startswith(_SINGLE_OBJECTS)
    return _SINGLE_OBJECTS if shared else dataset


@dataclass(frozen=True)
class Missing:
    """A set to fetch before it can be evaluated on: its name, "about 170 MB", and the command."""

    name: str
    size: str
    command: str


def missing_sets(wanted: Iterable[tuple[str, str]], root: str | Path | None) -> list[Missing]:
    """List the published sets among `wanted`, as (name, split), that do not lie below `root`; nothing is opened.

    Each set is named once, in the order of `wanted`.

    Raises:
        InputError: a name that is no published set, or a split that it does not have.
    """
    # without a root nothing is there, and the commands say FOLDER for it
    known = "FOLDER" if root is None else root
    names = dict.fromkeys(name for name, split in wanted if not is_there(name, split, place_of(name, known)))
    return [Missing(name, size_of(published(name)), command_for(name, known)) for name in names]


def published(name: str) -> PublishedSet:
    """The published set called `name`.

    Raises:
        InputError: there is none; the nearest name is offered.
    """
    if name not in PUBLISHED:
        raise unknown("published set", name, PUBLISHED)
    return PUBLISHED[name]


def is_there(name: str, split: str, place: Path) -> bool:
    """Whether the shards or files of one split lie in `place`, by the look of its folders.

    Raises:
        InputError: no such set, or it has no such split.
    """
    entry = published(name)
    if any((place / split).glob("*.tar")):
        return True
    if split not in entry.splits:
        raise InputError(f"{name} has no split {split!r}: choose from {', '.join(entry.splits)}")
    if entry.layout == "torchvision":
        return all((place / inside).is_dir() for inside in entry.inside)
    if entry.layout == "mmvp":
        return (place / "Questions.csv").is_file()
    if entry.layout in ("flickr", "coco"):
        return annotation_file(name, place, split).is_file()
    return class_folder(name, place, split, entry.inside) is not None


def annotation_file(name: str, place: Path, split: str) -> Path:
    """The captions of one split, in the folder `place` of the set."""
    coco = published(name).layout == "coco"
    return place / (f"coco_{split}_karpathy.json" if coco else f"{name}_{split}_karpathy.txt")


def class_folder(name: str, place: Path, split: str, inside: Sequence[str]) -> Path | None:
    """Find the folder below `place` that holds the class folders of a split; None where none does.

    ImageNet's split `test` is the publisher's `val`.
    """
    if name == "imagenet1k":
        inside = ("train",) if split == "train" else ("val", ".")
    numbered = name in PUBLISHED and PUBLISHED[name].layout == "numbers"
    pattern = r"\d{1,3}" if numbered else r"n\d{8}"
    for candidate in (place / folder for folder in inside):
        if candidate.is_dir() and any(re.fullmatch(pattern, folder) for folder in folders_in(candidate)):
            return candidate
    return None


def folders_in(folder: Path) -> list[str]:
    """List the folders in a folder, without hidden ones."""
    with os.scandir(folder) as entries:
        return sorted(entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def place_of(name: str, root: str | Path) -> Path:
    """ROOT/NAME."""
    return Path(root).expanduser() / name


def not_there(name: str, root: str | Path | None) -> InputError:
    """The error for a published set that is not in ROOT/NAME, or whose ROOT is unknown."""
    entry = published(name)
    what = f"{name} ({entry.title}, {size_of(entry)} to download)"
    if root is None:
        return InputError(
            f"{what} is a published set: give --data-root FOLDER, it lies in FOLDER/{name}; to get it: "
            f"{command_for(name, 'FOLDER')}"
        )
    return InputError(f"{what} is not in {place_of(name, root)}; to get it: {command_for(name, root)}")


def size_of(entry: PublishedSet) -> str:
    """The size of its download in words: "about 170 MB"."""
    return f"about {in_bytes(entry.size)}"


def in_bytes(count: int) -> str:
    """A number of bytes with two or three digits: "170 MB", "6.8 GB", "39 GB"."""
    if count < 10**9:
        return f"{count / 10**6:.0f} MB"
    return f"{count / 10**9:.0f} GB" if count >= 10**10 else f"{count / 10**9:.1f} GB"


def by_hand(name: str, root: str | Path) -> str:
    """The commands for a set that `diffclip data download` cannot fetch; empty for one that it can."""
    entry, place = published(name), shlex.quote(str(place_of(name, root)))
    if not entry.command:
        return ""
    return f"{entry.command.format(place=place)} ({entry.wants.format(place=place)})"


def command_for(name: str, root: str | Path) -> str:
    """The shell command that gets a set."""
    return by_hand(name, root) or f"diffclip data download {name} --root {shlex.quote(str(root))}"

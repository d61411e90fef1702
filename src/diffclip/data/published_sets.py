"""The named sets: the built-in scenes, and the published sets that the paper measures on, with their sizes, folders and
the commands that fetch them. This module imports nothing heavy, because commands check names first.

A published set lies in ROOT/NAME, with the name that LAION-AI/CLIP_benchmark gives it (`datasets/builder.py`): as
shards in clip_benchmark's layout (`SPLIT/0.tar`), or as files that torchvision or the publisher packs.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from diffclip.errors import InputError, unknown_name
from diffclip.files import cache_folder
from diffclip.version import __version__

HUB = "https://huggingface.co/datasets"
_OXFORD = "https://www.robots.ox.ac.uk/~vgg/data"
_CALTECH = "https://data.caltech.edu/records/mzrjq-6wc02"
_CAPTIONS = "https://github.com/mehdidc/retrieval_annotations/releases/download/1.0.0"
_SUGARCREPE = "https://raw.githubusercontent.com/RAIVNLab/sugar-crepe/main/data"
_KINDS = ("add_att", "add_obj", "replace_att", "replace_obj", "replace_rel", "swap_att", "swap_obj")
_TWO, _THREE = ("train", "test"), ("train", "val", "test")
_PART = re.compile(r"([^\[\]]+)\[(\d*):(\d*)\]")
# The publisher's names of splits, if they differ.
_PUBLISHERS = {("pets", "train"): "trainval", ("imagenet1k", "test"): "val"}


@dataclass(frozen=True)
class PublishedSet:
    """A published set to evaluate on.

    Attributes:
        size: of the download, such as "170 MB".
        reader: "builder" is clip_benchmark's builder with torchvision's download. "classes" is our reader of ImageNet's
            class folders, "captions" of images with captions, "choices" of SugarCrepe. Only task mmvp reads "pairs".
        files: the files and folders that a split needs in ROOT/NAME: the folder of images, then the file of captions.
            {split} stands for the publisher's name of the split.
        archives: addresses of the files to fetch and unpack, if torchvision does not fetch them.
        by_hand: the shell commands for a set that must be fetched by hand, with the reason as a comment; {place} is
            ROOT/NAME.
        shift_of: the set of which this one is a shifted version.
    """

    title: str
    size: str
    home: str
    reader: Literal["builder", "classes", "captions", "choices", "pairs"]
    files: tuple[str, ...]
    splits: tuple[str, ...] = ("test",)
    archives: tuple[str, ...] = ()
    by_hand: str = ""
    shift_of: str | None = None


def _built(title: str, size: str, home: str, splits: tuple[str, ...], *files: str) -> PublishedSet:
    return PublishedSet(title, size, home, "builder", files, splits)


def _shift(title: str, size: str, home: str, folder: str, archive: str) -> PublishedSet:
    return PublishedSet(title, size, home, "classes", (folder,), archives=(archive,), shift_of="imagenet1k")


def _flickr(title: str, size: str, kaggle: str, name: str, folder: str) -> PublishedSet:
    commands = (
        f"kaggle datasets download -d {kaggle} -p {{place}} --unzip && (cd {{place}} && "
        f"curl -LO '{_CAPTIONS}/{name}_{{{{train,val,test}}}}_karpathy.txt')  "
        "# Kaggle wants an account and pip install kaggle"
    )
    files, home = (folder, f"{name}_{{split}}_karpathy.txt"), f"https://www.kaggle.com/datasets/{kaggle}"
    return PublishedSet(title, size, home, "captions", files, _THREE, by_hand=commands)


# Sizes are those of the files that torchvision and the publishers offer.
# fmt: off
PUBLISHED = {
    "caltech101": PublishedSet("Caltech-101", "137 MB", _CALTECH, "builder", ("caltech101/101_ObjectCategories",),
                               _TWO, archives=(f"{_CALTECH}/files/caltech-101.zip",)),
    "cifar10": _built("CIFAR-10", "170 MB", "https://www.cs.toronto.edu/~kriz/cifar.html", _TWO,
                      "cifar-10-batches-py"),
    "cifar100": _built("CIFAR-100", "169 MB", "https://www.cs.toronto.edu/~kriz/cifar.html", _TWO,
                       "cifar-100-python"),
    "dtd": _built("Describable Textures", "625 MB", f"{_OXFORD}/dtd", _THREE, "dtd/dtd"),
    "fgvc_aircraft": _built("FGVC-Aircraft", "2.8 GB", f"{_OXFORD}/fgvc-aircraft", _THREE, "fgvc-aircraft-2013b"),
    "flowers": _built("Oxford Flowers 102", "345 MB", f"{_OXFORD}/flowers/102", _THREE, "flowers-102/jpg"),
    "food101": _built("Food-101", "5.0 GB", "https://data.vision.ee.ethz.ch/cvl/datasets_extra/food-101", _TWO,
                      "food-101/images", "food-101/meta"),
    "pets": _built("Oxford-IIIT Pet", "811 MB", f"{_OXFORD}/pets", _TWO,
                   "oxford-iiit-pet/images", "oxford-iiit-pet/annotations"),
    "sun397": _built("SUN397", "39 GB", "https://vision.princeton.edu/projects/2010/SUN", _TWO, "SUN397"),
    "imagenet1k": PublishedSet(
        "ImageNet, validation images", "6.8 GB", "https://image-net.org/download", "classes", ("{split}",), _TWO,
        by_hand="(cd {place} && python -c \"from torchvision.datasets import ImageNet; ImageNet('.', 'val')\")  "
        "# first sign in at https://image-net.org/download and put ILSVRC2012_img_val.tar and "
        "ILSVRC2012_devkit_t12.tar.gz into {place}"),
    "imagenetv2": _shift("ImageNet-V2, matched frequency", "1.3 GB", f"{HUB}/vaishaal/ImageNetV2",
                         "imagenetv2-matched-frequency-format-val",
                         f"{HUB}/vaishaal/ImageNetV2/resolve/main/imagenetv2-matched-frequency.tar.gz"),
    "imagenet-a": _shift("ImageNet-A", "688 MB", "https://github.com/hendrycks/natural-adv-examples",
                         "imagenet-a", "https://people.eecs.berkeley.edu/~hendrycks/imagenet-a.tar"),
    "imagenet-r": _shift("ImageNet-R", "2.2 GB", "https://github.com/hendrycks/imagenet-r",
                         "imagenet-r", "https://people.eecs.berkeley.edu/~hendrycks/imagenet-r.tar"),
    "imagenet_sketch": _shift("ImageNet-Sketch", "7.6 GB", "https://github.com/HaohanWang/ImageNet-Sketch",
                              "sketch", f"{HUB}/songweig/imagenet_sketch/resolve/main/data/ImageNet-Sketch.zip"),
    "flickr8k": _flickr("Flickr8k", "1.1 GB", "adityajn105/flickr8k", "flickr8k", "Images"),
    "flickr30k": _flickr("Flickr30k", "8.8 GB", "hsankesara/flickr-image-dataset", "flickr30k",
                         "flickr30k_images/flickr30k_images"),
    "mscoco_captions": PublishedSet(
        "COCO captions, val2014", "6.7 GB", "https://cocodataset.org", "captions",
        ("val2014", "coco_{split}_karpathy.json"), ("val", "test"),
        ("http://images.cocodataset.org/zips/val2014.zip",
         *(f"{_CAPTIONS}/coco_{split}_karpathy.json" for split in ("val", "test")))),
    "sugarcrepe": PublishedSet(
        "SugarCrepe, on COCO val2017", "820 MB", "https://github.com/RAIVNLab/sugar-crepe", "choices",
        tuple(f"{kind}.json" for kind in _KINDS),
        archives=("http://images.cocodataset.org/zips/val2017.zip",
                  *(f"{_SUGARCREPE}/{kind}.json" for kind in _KINDS))),
    "mmvp": PublishedSet("MMVP-VLM", "100 MB", f"{HUB}/MMVP/MMVP_VLM", "pairs", ("Questions.csv",)),
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
CHOICE_IMAGES = "val2017"
"""The folder of SugarCrepe's images, COCO's validation set of 2017."""

Shift = Literal["sketch", "recoloured", "noisy"]
SHIFTS: tuple[Shift, ...] = get_args(Shift)
"""The styles of the built-in scenes, besides the plain one."""
BUILT_IN = {
    "scenes": "captions",
    "scenes-sugarcrepe": "scenes-sugarcrepe",  # the folder is not named like the published set
    **{f"scenes-{name}": name for name in ("shapes", "colours", "counts", "mmvp", "segmentation")},
    **{f"scenes-shapes-{style}": f"shapes-{style}" for style in SHIFTS},
}
"""The folder of each built-in set, below the folder that `write_scenes` fills."""
_SINGLE_OBJECTS = "scenes-shapes", "shapes"  # name of the built-in set, and of its folder


def base_of(dataset: str) -> str | None:
    """Return the set of which `dataset` is a shifted version ("imagenet1k" for "imagenet-a"), or None."""
    base, _, style = dataset.rpartition("-")
    if base in _SINGLE_OBJECTS and style in SHIFTS:
        return base
    return PUBLISHED[dataset].shift_of if dataset in PUBLISHED else None


def images_of(dataset: str) -> str:
    """Return the set whose images `dataset` shows. Sets by shape, by color and in each style show the same scenes."""
    shared = dataset.removeprefix("scenes-") == "colours" or (base_of(dataset) or dataset) in _SINGLE_OBJECTS
    return _SINGLE_OBJECTS[0] if shared else dataset


def parts_of(split: str) -> tuple[str, int | None, int | None]:
    """Read a split such as `val[500:]`: its name, and the start and end (exclusive) of its part (None: no bound)."""
    match = _PART.fullmatch(split)
    if match is None:
        return split, None, None
    name, first, end = match.groups()
    return name, int(first) if first else None, int(end) if end else None


def has_shards(folder: Path, split: str) -> bool:
    """Tell whether `folder` has shards of a split."""
    return any((folder / split).glob("*.tar"))


def is_there(name: str, split: str, folder: Path) -> bool:
    """Tell whether `folder` has the shards or files of a split, by name; raise `InputError` for an unknown split."""
    if has_shards(folder, split):
        return True
    splits = PUBLISHED[name].splits
    if split not in splits:
        raise InputError(f"{name} has no split {split!r}: choose from {', '.join(splits)}")
    return all(file.exists() for file in files_of(name, split, folder))


def files_of(name: str, split: str, folder: Path) -> list[Path]:
    """List the files and folders of a split in `folder`, the folder of images first."""
    return [folder / file.format(split=publishers_split(name, split)) for file in PUBLISHED[name].files]


def publishers_split(name: str, split: str) -> str:
    """Return the publisher's name of a split: "val" for the split "test" of ImageNet."""
    return _PUBLISHERS.get((name, split), split)


def published_folder(name: str, root: str | Path) -> Path:
    """Return ROOT/NAME; if only the hub's shards exist, return their folder, ROOT/wds_NAME or ROOT/wds_vtab-NAME."""
    folders = [Path(root).expanduser() / f"{prefix}{name}" for prefix in ("", "wds_", "wds_vtab-")]
    return next((folder for folder in folders if folder.exists()), folders[0])


def missing_set_error(name: str, root: str | Path | None, split: str = "test") -> InputError:
    """Make the error for a published set that is not in ROOT/NAME, or whose ROOT is unknown."""
    entry, problem = PUBLISHED[name], f"needs --data-root FOLDER, with FOLDER/{name} in it"
    if root:
        folder = published_folder(name, root)
        problem = f"is not in {folder}"
        missing = [file for file in files_of(name, split, folder) if not file.exists()]
        if folder.is_dir() and missing:
            problem += f", which has neither {missing[0].relative_to(folder)} nor {split}/*.tar"
    command = command_for(name, root or "FOLDER")
    return InputError(f"{name} ({entry.title}, {entry.size} to download) {problem}; to get it: {command}")


def manual_commands(name: str, root: str | Path) -> str:
    """Return the commands for a set that `diffclip data download` cannot fetch; "" for the others."""
    return PUBLISHED[name].by_hand.format(place=shlex.quote(str(published_folder(name, root))))


def command_for(name: str, root: str | Path) -> str:
    """Return the shell command that gets a set."""
    return manual_commands(name, root) or f"diffclip data download {name} --root {shlex.quote(str(root))}"


def set_folder(source: str | Path, root: str | Path | None = None) -> Path:
    """Return the folder of a set: of a built-in set that has been drawn, ROOT/NAME, or `source` itself. Of a path such
    as `./NAME`, the folder in the working directory comes first. Raise `InputError` if there is none."""
    name, folder = str(source), Path(source).expanduser()
    if name in BUILT_IN:
        if not built_in_folder().is_dir():
            raise InputError(f"{name} has not been drawn: call diffclip.scenes.draw_built_in()")
        return built_in_folder() / BUILT_IN[name]
    if name in PUBLISHED and root is not None:
        # ROOT/NAME comes before a folder of that name in the working directory
        if not published_folder(name, root).is_dir():
            raise missing_set_error(name, root)
        return published_folder(name, root)
    is_path = os.sep in name or name.startswith(".")
    folders = [folder] if root is None else [Path(root).expanduser() / name, folder]
    for candidate in reversed(folders) if is_path else folders:
        if candidate.is_dir():
            return candidate
    if name in PUBLISHED:
        raise missing_set_error(name, root)
    if os.sep in name or folder.exists():
        raise InputError(f"{source} is not a folder: give one in clip_benchmark's layout, or 'scenes'")
    unknown = unknown_name("set", name, [*BUILT_IN, *PUBLISHED])
    raise InputError(f"{unknown}; or give a folder in clip_benchmark's layout")


def built_in_folder() -> Path:
    """Return the folder in the user's cache folder where `scenes.draw_built_in` draws the built-in sets."""
    return cache_folder() / f"scenes-{__version__}"

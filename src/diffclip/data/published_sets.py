"""The named sets: the built-in scenes, and the published sets that the paper measures on, with their repositories on
the hub. This module imports nothing heavy, because commands check names first.

A published set lies in ROOT/NAME, with the name that LAION-AI/CLIP_benchmark gives it (`datasets/builder.py`), as
shards in clip_benchmark's layout. MMVP and SugarCrepe have their publishers' files.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Literal, NamedTuple, get_args

from diffclip.errors import InputError, unknown_name
from diffclip.files import cache_folder
from diffclip.version import __version__

HUB = "https://huggingface.co/datasets"
_SUGARCREPE = "https://raw.githubusercontent.com/RAIVNLab/sugar-crepe/main/data"
_KINDS = "{{add_att,add_obj,replace_att,replace_obj,replace_rel,swap_att,swap_obj}}"
_PREFIXES = ("", "wds_", "wds_vtab-")  # clip_benchmark's, before the names of its repositories
_PART = re.compile(r"([^\[\]]+)\[(\d*):(\d*)\]")


class PublishedSet(NamedTuple):
    """A published set to evaluate on.

    Attributes:
        hub: its repository on the hub; "" if there is none.
        splits: the splits that are fetched; () for a repository without shards, which is fetched whole.
        shift_of: the set of which this one is a shifted version.
        file: a file in ROOT/NAME that stands for a set without shards.
        by_hand: the shell commands that get a set without a repository; {place} is ROOT/NAME.
    """

    title: str
    hub: str
    splits: tuple[str, ...] = ("train", "test")
    shift_of: str | None = None
    file: str = ""
    by_hand: str = ""


def _on_hub(title: str, name: str, *splits: str, shift_of: str | None = None) -> PublishedSet:
    return PublishedSet(title, f"clip-benchmark/wds_{name}", splits or ("train", "test"), shift_of)


PUBLISHED = {
    "caltech101": _on_hub("Caltech-101", "vtab-caltech101"),
    "cifar10": _on_hub("CIFAR-10", "vtab-cifar10"),
    "cifar100": _on_hub("CIFAR-100", "vtab-cifar100"),
    "dtd": _on_hub("Describable Textures", "vtab-dtd"),
    "fgvc_aircraft": _on_hub("FGVC-Aircraft", "fgvc_aircraft"),
    "flowers": _on_hub("Oxford Flowers 102", "vtab-flowers"),
    "food101": _on_hub("Food-101", "food101"),
    "pets": _on_hub("Oxford-IIIT Pet", "vtab-pets"),
    "sun397": _on_hub("SUN397", "sun397", "test"),
    "imagenet1k": _on_hub("ImageNet, validation images", "imagenet1k", "test"),
    "imagenetv2": _on_hub("ImageNet-V2", "imagenetv2", "test", shift_of="imagenet1k"),
    "imagenet-a": _on_hub("ImageNet-A", "imagenet-a", "test", shift_of="imagenet1k"),
    "imagenet-r": _on_hub("ImageNet-R", "imagenet-r", "test", shift_of="imagenet1k"),
    "imagenet_sketch": _on_hub("ImageNet-Sketch", "imagenet_sketch", "test", shift_of="imagenet1k"),
    "flickr8k": _on_hub("Flickr8k", "flickr8k"),
    "flickr30k": _on_hub("Flickr30k", "flickr30k", "test"),
    "mscoco_captions": _on_hub("COCO captions", "mscoco_captions", "test"),
    "mmvp": PublishedSet("MMVP-VLM", "MMVP/MMVP_VLM", (), file="Questions.csv"),
    "sugarcrepe": PublishedSet(
        "SugarCrepe, on COCO val2017",
        "",
        file="swap_obj.json",
        by_hand=f"(mkdir -p {{place}} && cd {{place}} && curl -LO '{_SUGARCREPE}/{_KINDS}.json' && "
        "curl -LO http://images.cocodataset.org/zips/val2017.zip && unzip -q val2017.zip)",
    ),
}

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
    """Tell whether `folder` has a split of the set `name`, by the names of its files."""
    file = PUBLISHED[name].file if name in PUBLISHED else ""
    return has_shards(folder, split) or (bool(file) and (folder / file).is_file())


def published_folder(name: str, root: str | Path) -> Path:
    """Return ROOT/NAME; if only a folder with the repository's name exists, ROOT/wds_NAME or ROOT/wds_vtab-NAME."""
    folders = [Path(root).expanduser() / f"{prefix}{name}" for prefix in _PREFIXES]
    return next((folder for folder in folders if folder.exists()), folders[0])


def missing_set_error(name: str, root: str | Path | None) -> InputError:
    """Make the error for a published set that is not in ROOT/NAME, or whose ROOT is unknown."""
    problem = f"needs --data-root FOLDER, with FOLDER/{name} in it"
    if root:
        problem = f"is not in {published_folder(name, root)}"
    command = command_for(name, root or "FOLDER")
    return InputError(f"{name} ({PUBLISHED[name].title}) {problem}; to get it: {command}")


def command_for(name: str, root: str | Path) -> str:
    """Return the shell command that gets a set."""
    by_hand = PUBLISHED[name].by_hand.format(place=shlex.quote(str(published_folder(name, root))))
    return by_hand or f"diffclip data download {name} --root {shlex.quote(str(root))}"


def set_folder(source: str | Path, root: str | Path | None) -> Path:
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

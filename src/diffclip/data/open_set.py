"""Sets to evaluate on: folders in clip_benchmark's layout, the built-in scenes and published sets by name.

The layout is that of LAION-AI/CLIP_benchmark (`datasets/builder.py`, `build_wds_dataset`): `SPLIT/{0..n}.tar`
with `SPLIT/nshards.txt`, `classnames.txt`, `zeroshot_classification_templates.txt` and `dataset_type.txt`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from diffclip.data.choices import open_choices
from diffclip.data.evaluation_set import EvaluationSet, Kind, read_answers
from diffclip.data.images import IMAGE, image_files
from diffclip.data.index import open_indexes
from diffclip.data.masks import CROWD, label_of, masked_set
from diffclip.data.members import MASK, SEGMENTS, Members
from diffclip.data.pairs import PairKeys
from diffclip.data.published_sets import (
    BUILT_IN,
    PUBLISHED,
    has_shards,
    is_there,
    missing_set_error,
    parts_of,
    set_folder,
)
from diffclip.data.shards import tar_files
from diffclip.data.tar_set import TarSet
from diffclip.errors import Fault, InputError
from diffclip.files import read_text

_TEMPLATES, _DEFAULT_TEMPLATE = "zeroshot_classification_templates.txt", "a photo of a {c}"


def open_set(
    source: str | Path, split: str, root: str | Path | None = None, kind: Kind | None = None
) -> EvaluationSet:
    """Open one split of a set.

    Args:
        source: a folder in clip_benchmark's layout; the name of a built-in set that `scenes.draw_built_in` has drawn,
            such as `scenes` (retrieval) or `scenes-shapes` (classification); or the name of a published set, which
            is in ROOT/NAME (see `published_sets`).
        split: a folder of shards in `source`, for example `test`; or a split of the published set. `val[500:]` is
            the part of `val` from sample 500 on, in the notation of TensorFlow Datasets.
        root: the folder of the published sets.
        kind: the kind of the set; None: decide by `dataset_type.txt`, the class list and the samples.

    Returns:
        The set: a `MaskedSet` for "masks", a `ChoiceSet` for "sugarcrepe".

    Raises:
        InputError: there is no such set, split or sample; labels and class list do not fit; or a published set must
            be downloaded first.
    """
    folder, (whole_split, first, end) = set_folder(source, root), parts_of(split)
    opened = _open(set_name(source, folder), whole_split, folder, kind)
    return opened if whole_split == split else replace(opened.part(first, end), split=split)


def has_split(source: str | Path, split: str, root: str | Path | None) -> bool:
    """Tell whether a set has a split, complete or not; `source`, `split` and `root` are as in `open_set`."""
    folder, split = set_folder(source, root), parts_of(split)[0]
    return (folder / split).is_dir() or is_there(set_name(source, folder), split, folder)


def set_name(source: str | Path, folder: Path) -> str:
    """Return the name of a set: `source` itself for a built-in or published set, else the name of its folder. If the
    folder has a published set's name after the prefixes of clip_benchmark's repositories, they are removed."""
    if str(source) in BUILT_IN or (str(source) in PUBLISHED and folder != Path(source).expanduser()):
        return str(source)
    bare = folder.absolute().name.removeprefix("wds_").removeprefix("vtab-")
    return bare if bare in PUBLISHED else folder.resolve().name


def _open(name: str, split: str, folder: Path, kind: Kind | None) -> EvaluationSet:
    @cache  # every task that learns asks for the split to learn from
    def open_split(other: str) -> EvaluationSet | None:
        return _open(name, other, folder, kind) if has_shards(folder, other) else None

    return replace(_read(name, split, folder, kind), beside=open_split)


def _read(name: str, split: str, folder: Path, kind: Kind | None) -> EvaluationSet:
    set_kind = kind or _declared_kind(folder)
    if name == "sugarcrepe" and is_there(name, split, folder):
        set_kind = "sugarcrepe"
    elif name in PUBLISHED and not _shard_splits(folder):
        raise missing_set_error(name, folder.parent)
    if set_kind == "sugarcrepe":
        if split != "test":
            raise InputError(f"{folder} has no splits: leave --split out")
        return open_choices(name, folder)
    shards = _shards(folder, split)
    if kind is None and set_kind == "classification":
        set_kind = _kind_of_samples(folder, shards)
    if set_kind == "retrieval":
        return caption_set(name, split, list(map(str, shards)))
    if set_kind == "masks":
        classnames, template = _lines(folder / "classnames.txt"), _templates(folder)[0]
        return masked_set(name, split, _tars(shards, "mask", MASK), classnames, template)
    return _open_classes(name, split, set_kind, shards, folder)


def _open_classes(name: str, split: str, kind: Kind, shards: list[Path], folder: Path) -> EvaluationSet:
    """Open a set with a class per image ("classification") or per pixel ("segmentation")."""
    classnames, templates, labels = _classnames(folder, kind), _templates(folder), []
    if kind == "segmentation":
        if len(classnames) >= CROWD:
            limit = f"{len(classnames)} classes: .{SEGMENTS} holds up to {CROWD - 1}"
            raise InputError(f"{folder / 'classnames.txt'} has {limit}")
        tars = _tars(shards, "class for each pixel", SEGMENTS)
    else:
        tars = _tars(shards, "label", "cls")
        samples = map(tars.__getitem__, range(len(tars)))
        labels = [label_of(sample.read("cls"), sample.name, len(classnames)) for sample in samples]
    indices, faults = list(range(len(tars))), tars.faults + tars.notes
    data = EvaluationSet(name, split, kind, classnames, templates, tars, indices, labels, faults=faults)
    if labels and (empty := [classnames[n] for n in sorted(set(range(len(classnames))) - set(labels))]):
        which = f"has no image of {len(empty)} of its {len(classnames)} classes, the first is {empty[0]!r}"
        _note(data, folder / split, f"{which}: mean_per_class_recall is over the others")
    if twice := [name for name in dict.fromkeys(classnames) if classnames.count(name) > 1]:
        _note(data, folder / "classnames.txt", f"names {twice[0]!r} twice: a tie, which counts as wrong")
    if not _lines(folder / _TEMPLATES):
        _note(data, folder, f"has no {_TEMPLATES}: {_DEFAULT_TEMPLATE!r} is taken")
    return data


def _note(data: EvaluationSet, path: Path, reason: str) -> None:
    data.faults.append(Fault(str(path), reason, "note"))


def _tars(shards: list[Path], name: str, ending: str) -> TarSet:
    """Open shards of samples with an image and a member of this ending, `name` in messages."""
    endings = (("image", IMAGE), *((ending, (ending,)) for ending in ("txt", "json", "cls", MASK, SEGMENTS)))
    needed = (("image", ("image",)), (f"{name} (.{ending})", (ending,)))
    return TarSet(shards, Members(endings, needed, f"add a .{ending} to each"))


def caption_set(
    name: str, split: str, shards: Any, keys: PairKeys | None = None, *cache: Any
) -> EvaluationSet:
    """Open images with their captions as a set for retrieval, or raise `InputError` if no sample has both. `shards`
    and `cache` (folder and limit) are as of a `TarSet`."""
    keys = keys or PairKeys()
    tars = TarSet(shards, keys.members("add a caption (.txt or .json) to each"), None, *cache)
    indices, captions, faults = read_answers(tars, lambda sample: keys.read(sample).texts)
    return EvaluationSet(name, split, "retrieval", [], [], tars, indices, captions=captions, faults=faults)


def _classnames(folder: Path, kind: str) -> list[str]:
    file = folder / "classnames.txt"
    classnames = _lines(file)
    if not classnames:
        raise InputError(f"{folder} has no classnames.txt: {kind} needs one, with a class name per line")
    if "" in classnames:
        raise InputError(f"{file}: line {classnames.index('') + 1} is blank: name the class")
    if len(classnames) == 1:
        # every answer would be right
        raise InputError(f"{file} has a single class, {classnames[0]!r}: give two or more")
    return classnames


def _templates(folder: Path) -> list[str]:
    prompts = folder / _TEMPLATES
    templates = [line for line in _lines(prompts) if line] or [_DEFAULT_TEMPLATE]
    for template in templates:
        if "{c}" not in template:
            raise InputError(f"{template!r} in {prompts} has no {{c}}: write {{c}} where the class name goes")
    return templates


def _declared_kind(folder: Path) -> Kind:
    kinds: dict[str, Kind] = {kind: kind for kind in get_args(Kind) if kind != "mmvp"}
    name = " ".join(_lines(folder / "dataset_type.txt")).lower() or "classification"
    if name not in kinds:
        raise InputError(
            f"{folder} is a set of type {name!r} (dataset_type.txt), which diffclip does not measure: use "
            f"clip_benchmark for it, or give a set of type {', '.join(kinds)}"
        )
    return kinds[name]


def _kind_of_samples(folder: Path, shards: list[Path]) -> Kind:
    headers = [index.header for index in open_indexes(shards, tables=False).values()]
    endings = {ending for header in headers for shape in header.shapes for ending in shape}
    is_declared = any((folder / file).exists() for file in ("classnames.txt", "dataset_type.txt"))
    if MASK in endings and not is_declared:
        return "masks"
    if "cls" in endings:
        return "classification"
    if SEGMENTS in endings:
        return "segmentation"
    return "retrieval" if endings & {"txt", "json"} and not is_declared else "classification"


def _shards(folder: Path, split: str) -> list[Path]:
    split_folder = folder / split
    if not split_folder.is_dir():
        splits = _shard_splits(folder)
        choice = f"choose from {', '.join(splits)}" if splits else "give a folder of folders with .tar shards"
        raise InputError(f"{folder} has no split {split!r}: {choice}")
    if not has_shards(folder, split) and image_files(split_folder):
        raise InputError(
            f"{split_folder} holds image files, and no .tar shards: give them to diffclip.evaluate as a dataset, such "
            "as torchvision's ImageFolder of class folders"
        )
    shards, lines = tar_files(split_folder), _lines(split_folder / "nshards.txt")
    if lines and lines[0] != str(len(shards)):
        raise InputError(
            f"{split_folder} has {len(shards)} shards, and its nshards.txt says {lines[0]!r}: fetch it again"
        )
    return shards


def _shard_splits(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and has_shards(folder, path.name))


def _lines(file: Path) -> list[str]:
    """Return the stripped lines of a text file, without blank lines at the end; [] if the file does not exist."""
    if not file.exists():
        return []
    text = read_text(file).rstrip()
    return [line.strip() for line in text.split("\n")] if text else []

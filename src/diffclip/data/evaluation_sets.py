"""Sets to evaluate on: folders in clip_benchmark's layout, the built-in scenes and published sets by name.

The layout is that of LAION-AI/CLIP_benchmark (`datasets/builder.py`, `build_wds_dataset`): `SPLIT/{0..n}.tar`
with `SPLIT/nshards.txt`, `classnames.txt`, `zeroshot_classification_templates.txt` and `dataset_type.txt`.
"""

from __future__ import annotations

import json
import os
import pkgutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import diffclip
from diffclip.data.captions import read_text
from diffclip.data.corpus import CAPTION_KEY, caption_members, captions_of
from diffclip.data.evaluation_set import EvaluationSet, Kind
from diffclip.data.images import IMAGE
from diffclip.data.make_shards import MANIFEST
from diffclip.data.masks import MASK, label_of, masked_set
from diffclip.data.published_files import open_files
from diffclip.data.published_sets import PUBLISHED, is_there, not_there, parts_of, place_of
from diffclip.data.segmentation import CROWD, SEGMENTS, SegmentedSet
from diffclip.data.shards import Shards, expand_shards, tar_files
from diffclip.data.sugarcrepe import open_choices
from diffclip.errors import Fault, InputError, sample_fault, unknown
from diffclip.files import cache_folder

_PAIRS = "Questions.csv"
_TEMPLATES, _DEFAULT_TEMPLATE = "zeroshot_classification_templates.txt", "a photo of a {c}"
# The name of a built-in set → its folder in what `write_scenes` draws.
BUILT_IN = {
    "scenes": "captions",
    "scenes-shapes": "shapes",
    "scenes-colours": "colours",
    "scenes-counts": "counts",
    "scenes-mmvp": "mmvp",
    "scenes-segmentation": "segmentation",
    "scenes-sugarcrepe": "scenes-sugarcrepe",  # by its folder too it is not the published set
    "scenes-shapes-sketch": "shapes-sketch",
    "scenes-shapes-recoloured": "shapes-recoloured",
    "scenes-shapes-noisy": "shapes-noisy",
}


def open_set(
    source: str | Path, split: str, root: str | Path | None = None, kind: Kind | None = None
) -> EvaluationSet:
    """Open one split of a set.

    Args:
        source: a folder in clip_benchmark's layout; the name of a built-in set, such as `scenes` (retrieval) or
            `scenes-shapes` (classification), drawn into the user's cache folder on first use; or the name of a
            published set, which lies in ROOT/NAME (see `published_sets`).
        split: a folder of shards in it, for example `test`; or a split of the published set. `val[500:]` is the part
            of it from sample 500 on, as TensorFlow Datasets writes it.
        root: the folder of the published sets.
        kind: what its samples are read for; None: as the folder tells, by `dataset_type.txt`, its class list and what
            its samples have.

    Returns:
        The set: a `MaskedSet`, `SegmentedSet` or `ChoiceSet` for "masks", "segmentation" and "sugarcrepe".

    Raises:
        InputError: no such set, folder or split; a set of pairs, which has no splits; no shards or samples of that
            kind; no class list, or of a single class; labels that cannot be read or lie outside the class list; a
            published set that must be downloaded first.
    """
    folder, (whole, first, end) = set_folder(source, root), parts_of(split)
    opened = _open(set_name(source, folder), whole, folder, kind)
    return opened if whole == split else replace(opened.part(first, end), split=split)


def has_split(source: str | Path, split: str, root: str | Path | None = None) -> bool:
    """Whether a set, named as for `open_set`, has something of that split, whole or not.

    Raises:
        InputError: no such set or folder.
    """
    folder, split = set_folder(source, root), parts_of(split)[0]
    return (folder / split).is_dir() or _has_files(set_name(source, folder), split, folder)


def set_name(source: str | Path, folder: Path) -> str:
    """Name the set `source`: a built-in or published set as it is, a folder by its own name, without the prefix of
    clip_benchmark's repositories if it is a published set."""
    if str(source) in BUILT_IN or (str(source) in PUBLISHED and folder != Path(source).expanduser()):
        return str(source)
    bare = folder.absolute().name.removeprefix("wds_").removeprefix("vtab-")
    return bare if bare in PUBLISHED else folder.resolve().name


def _open(name: str, split: str, folder: Path, kind: Kind | None) -> EvaluationSet:
    def beside(other: str) -> EvaluationSet | None:
        there = _has_shards(folder, other) or _has_files(name, other, folder)
        return _open(name, other, folder, kind) if there else None

    data = replace(_read(name, split, folder, kind), folder=folder, beside=beside)
    if isinstance(data.source, Shards):
        data.faults += _notes(folder, split, data.kind)
    return data


def _notes(folder: Path, split: str, kind: Kind) -> Iterator[Fault]:
    """Yield notes on shards whose images were scaled down, or which name no templates."""
    manifest = folder / split / MANIFEST
    edge = json.loads(read_text(manifest))["edge"] if manifest.exists() else None
    if edge:
        yield Fault(str(folder / split), f"holds images of {edge} px, from make-shards --edge", "note")
    if kind in ("classification", "segmentation") and not _lines(folder / _TEMPLATES):
        yield Fault(str(folder), f"has no {_TEMPLATES}: {_DEFAULT_TEMPLATE!r} is taken", "note")


def _read(name: str, split: str, folder: Path, kind: Kind | None) -> EvaluationSet:
    published_files = kind is None and name in PUBLISHED and not _has_shards(folder, split)
    if published_files and (_has_files(name, split, folder) or not _shard_splits(folder)):
        return open_files(name, split, folder)
    told = kind or _kind(folder)
    if told == "sugarcrepe":
        if split != "test":
            raise InputError(f"{folder} has no splits: leave --split out")
        return open_choices(name, folder)
    shards = Shards(_shards(folder, split))
    if kind is None and told == "classification":
        told = _kind_of_samples(folder, shards)
    if told == "retrieval":
        return caption_set(name, split, shards)
    if told == "masks":
        return masked_set(name, split, shards, _lines(folder / "classnames.txt"), _templates(folder)[0])
    if told == "segmentation":
        return _segmented(name, split, shards, folder)
    return _classification(name, split, shards, folder)


def _has_shards(folder: Path, split: str) -> bool:
    return any((folder / split).glob("*.tar"))


def _has_files(name: str, split: str, folder: Path) -> bool:
    return name in PUBLISHED and split in PUBLISHED[name].splits and is_there(name, split, folder)


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


def _classification(name: str, split: str, shards: Shards, folder: Path) -> EvaluationSet:
    classnames, templates = _classnames(folder, "classification"), _templates(folder)
    usable, missing = shards.usable({"image": IMAGE, "label (.cls)": ("cls",)})
    indices, faults = usable.tolist(), shards.faults + missing
    if not indices:
        raise InputError(
            f"no sample in {folder / split} has an image and a label (first: {faults[0]}): add a .cls to each"
        )
    labels = [label_of(shards.sample(i, ("cls",)), shards.name(i), len(classnames)) for i in indices]
    seen = set(labels)
    empty = [classname for label, classname in enumerate(classnames) if label not in seen]
    if empty:
        which = f"has no image of {len(empty)} of its {len(classnames)} classes, the first is {empty[0]!r}"
        reason = f"{which}: mean_per_class_recall is over the others"
        faults.append(Fault(str(folder / split), reason, "note"))
    return EvaluationSet(
        name, split, "classification", classnames, templates, shards, indices, labels, faults=faults
    )


def _segmented(name: str, split: str, shards: Shards, folder: Path) -> SegmentedSet:
    classnames, templates = _classnames(folder, "segmentation"), _templates(folder)
    if len(classnames) >= CROWD:
        raise InputError(
            f"{folder / 'classnames.txt'} has {len(classnames)} classes: .{SEGMENTS} holds up to {CROWD - 1}"
        )
    usable, missing = shards.usable({"image": IMAGE, f"classes (.{SEGMENTS})": (SEGMENTS,)})
    faults = shards.faults + missing
    if not len(usable):
        raise InputError(
            f"no sample in {folder / split} has an image and a class for each pixel (.{SEGMENTS}): {faults[0]}"
        )
    return SegmentedSet(
        name, split, "segmentation", classnames, templates, shards, usable.tolist(), faults=faults
    )


def _templates(folder: Path) -> list[str]:
    prompts = folder / _TEMPLATES
    templates = [line for line in _lines(prompts) if line] or [_DEFAULT_TEMPLATE]
    for template in templates:
        if "{c}" not in template:
            raise InputError(f"{template!r} in {prompts} has no {{c}}: write {{c}} where the class name goes")
    return templates


def caption_set(name: str, split: str, shards: Shards, caption_key: str = CAPTION_KEY) -> EvaluationSet:
    """Images with their captions as a set for retrieval.

    Raises:
        InputError: no sample has an image and a caption.
    """
    usable, missing = shards.usable({"image": IMAGE, "caption": caption_members(caption_key)})
    faults = shards.faults + missing
    indices, captions = [], []
    for i in usable.tolist():
        where = shards.name(i)
        try:
            captions.append(captions_of(shards.sample(i, caption_members(caption_key)), where, caption_key))
            indices.append(i)
        except (InputError, OSError) as error:
            faults.append(sample_fault(where, error))
    if not indices:
        raise InputError(
            f"no sample in {shards} has an image and captions (first: {faults[0]}): add a .txt to each"
        )
    return EvaluationSet(name, split, "retrieval", [], [], shards, indices, captions=captions, faults=faults)


def set_folder(source: str | Path, root: str | Path | None = None) -> Path:
    """The folder of a set: of a built-in one, which is drawn on first use, or ROOT/NAME of a published one, or of
    another by its name alone.

    Raises:
        InputError: no such set or folder.
    """
    name, folder = str(source), Path(source).expanduser()
    if name in BUILT_IN:
        return draw_built_in() / BUILT_IN[name]
    if name in PUBLISHED and root is not None:
        # before a folder of that name that happens to lie where the program was started
        if not place_of(name, root).is_dir():
            raise not_there(name, root)
        return place_of(name, root)
    if folder.is_dir():
        return folder
    if root is not None and os.sep not in name and (Path(root) / name).is_dir():
        return Path(root) / name
    if name in PUBLISHED:
        raise not_there(name, root)
    if folder.exists():
        raise InputError(f"{source} is a file: give the folder that holds the splits of a set")
    if os.sep not in name:
        names = [*BUILT_IN, *PUBLISHED]
        raise InputError(f"{unknown('set', name, names)}; or give a folder in clip_benchmark's layout")
    raise InputError(f"folder {source} does not exist: give a set in clip_benchmark's layout, or 'scenes'")


def draw_built_in(workers: int = 1) -> Path:
    """The folder of the built-in images, drawn on first use by so many processes, anew for each version of the
    package."""
    # the scenes are a package above this one, which is therefore named, not imported
    write_scenes = pkgutil.resolve_name("diffclip.scenes:write_scenes")
    folder = cache_folder() / f"scenes-{diffclip.__version__}"
    write_scenes(folder, size=64, train=4000, val=500, test=1000, seed=0, workers=workers)
    return folder


def _kind(folder: Path) -> Kind:
    said = " ".join(_lines(folder / "dataset_type.txt")).lower() or "classification"
    kinds: tuple[Kind, ...] = ("classification", "retrieval", "sugarcrepe")
    for kind in kinds:
        if said == kind:
            return kind
    raise InputError(f"{folder / 'dataset_type.txt'} says {said!r}: write classification or retrieval")


def _kind_of_samples(folder: Path, shards: Shards) -> Kind:
    untold = not any((folder / file).exists() for file in ("classnames.txt", "dataset_type.txt"))
    if untold and len(shards.usable({"mask": (MASK,)})[0]):
        return "masks"
    if len(shards.usable({"": (SEGMENTS,)})[0]) and not len(shards.usable({"": ("cls",)})[0]):
        return "segmentation"
    return "classification"


def _shards(folder: Path, split: str) -> list[Path]:
    inside = folder / split
    if not inside.is_dir():
        if (folder / _PAIRS).is_file():
            raise InputError(f"{folder} is a set of pairs ({_PAIRS}) and has no splits: use --task mmvp")
        splits = _shard_splits(folder)
        if not splits:
            raise InputError(
                f"{folder} has no split {split!r}, nor any other folder of .tar shards: give another folder"
            )
        raise InputError(f"{folder} has no split {split!r}: choose from {', '.join(splits)}")
    count = _lines(inside / "nshards.txt")
    if not count:
        return tar_files(inside)
    if not count[0].isdecimal() or int(count[0]) == 0:
        raise InputError(
            f"{inside / 'nshards.txt'} holds {count[0]!r} instead of the number of shards: correct it"
        )
    return expand_shards([inside / f"{number}.tar" for number in range(int(count[0]))])


def _shard_splits(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and _has_shards(folder, path.name))


def _lines(file: Path) -> list[str]:
    """The lines of a text file, stripped, up to the last that is not blank; none if there is no such file."""
    if not file.exists():
        return []
    return [line.strip() for line in read_text(file).rstrip().splitlines()]

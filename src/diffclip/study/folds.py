"""The data of a study in folds: a set with a split for each fold, for K-fold cross-validation."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from diffclip.data.images import IMAGE
from diffclip.data.members import Members
from diffclip.data.shards import add_member
from diffclip.data.tar_set import TarSet
from diffclip.errors import InputError
from diffclip.files import digest_of, write_atomically, write_text

_ABOUT_FILE = "folds.json"
_TEXTS = ("txt", "json")
_MEMBERS = Members(
    tuple((ending, (ending,)) for ending in (*IMAGE, *_TEXTS)),
    (("image", IMAGE), ("caption", _TEXTS)),
    "give a set of captioned images",
)


def fold_split(fold: int) -> str:
    """Return the name of a fold as a split of a set."""
    return f"fold{fold}"


def write_folds(source: Path, count: int, folder: Path) -> None:
    """Write the captioned images of a set as another set, with a split for each of `count` folds.

    The samples are those of the splits train and val; sample i is in fold i mod `count`. Folds that are there already
    stay. `InputError` is raised if they are of other samples, or if there are fewer samples than folds.
    """
    splits = [source / split for split in ("train", "val") if (source / split).is_dir()]
    tars = TarSet(splits, _MEMBERS)
    samples = range(len(tars))
    if len(samples) < count:
        raise InputError(f"{source} has {len(samples)} captioned images: give fewer folds than that")
    names = digest_of([tars.name(i).rpartition("/")[2] for i in samples])
    about = json.dumps({"folds": count, "samples": len(samples), "names": names}) + "\n"
    if (folder / _ABOUT_FILE).is_file():
        if (folder / _ABOUT_FILE).read_text("utf-8") != about:
            raise InputError(
                f"{folder} holds folds of other samples than {source}: remove it, or choose other --runs"
            )
        return
    for fold in range(count):
        split = folder / fold_split(fold)
        with write_atomically(split / "0.tar") as temporary, tarfile.open(temporary, "w") as tar:
            for i in samples[fold::count]:
                for extension, content in tars[i].read(*_MEMBERS.labels).items():
                    add_member(tar, f"{i:07d}.{extension}", content)
        write_text(split / "nshards.txt", "1\n")
    write_text(folder / "dataset_type.txt", "retrieval\n")
    write_text(folder / _ABOUT_FILE, about)  # last: without it, folds are written again

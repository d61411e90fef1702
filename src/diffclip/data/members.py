"""Group the members of a tar into samples by their names, and choose the members of a sample to read by the endings."""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache, partial

from diffclip.data.images import IMAGE, is_hidden

MASK, SEGMENTS = "mask.png", "seg.png"
"""The endings of an object mask and of a class mask."""
Position = tuple[int, int]
"""The block and the size of a member."""
Entry = tuple[str, Position]
"""The path of a member, and its position."""
Sample = tuple[str, dict[str, Position]]
"""A key, and the position of the member with each ending."""
Labels = tuple[str, ...]
_USUAL = {*IMAGE, "txt", "json", "cls"}
_METADATA = re.compile(r"__.*__")
ENDINGS_ADVICE = (
    "an ending starts at the first dot of the file's name; rename the files, or give the endings or patterns such as "
    "'*.jpg' to train on as data.image_key and data.text_key"
)


def group_members(entries: list[Entry]) -> tuple[list[Sample], list[str]]:
    """Group members by key into samples. A second member with an ending begins another sample of its key; these keys
    are returned too."""
    samples: list[Sample] = []
    last: dict[str, dict[str, Position]] = {}
    repeated: dict[str, None] = {}
    for path, position in entries:
        folder, _, name = path.rpartition("/")
        stem, _, ending = name.partition(".")
        parts = [*folder.split("/"), name] if folder else [name]
        # webdataset's own members, such as `__index__.json` or `__meta__/…`, are not of a sample either
        if not stem or not ending or any(map(is_hidden, parts)) or _METADATA.fullmatch(parts[0]):
            continue
        key, ending = f"{folder}/{stem}" if folder else stem, ending.lower()
        if ending in last.get(key, ()):
            repeated[key] = None
        if key not in last or ending in last[key]:
            last[key] = {}
            samples.append((key, last[key]))
        last[key][ending] = position
    if any(_has_image(members) for _, members in samples):
        for short_name in _SHORT_NAMES:
            samples = _join_images(samples, short_name)
    return samples, list(repeated)


# Names by which an image and its texts are one sample: in one form of Unicode, without the first folder (`images/a.jpg`
# and `texts/a.txt`), without the last folder, without any.
_SHORT_NAMES: tuple[Callable[[str], str], ...] = (
    partial(unicodedata.normalize, "NFC"),
    lambda key: key.partition("/")[2] or key,
    lambda key: "/".join([*key.split("/")[:-2], os.path.basename(key)]),
    os.path.basename,
)


def _join_images(samples: list[Sample], short_name: Callable[[str], str]) -> list[Sample]:
    """Join an image with members elsewhere that have its short name, unless there are several images to choose from, or
    two members with one ending."""
    if all(_has_image(members) for _, members in samples):
        return samples
    groups: dict[str, list[dict[str, Position]]] = {}
    for key, members in samples:
        groups.setdefault(short_name(key), []).append(members)
    for group in groups.values():
        images, endings = [*filter(_has_image, group)], [ending for members in group for ending in members]
        if len(images) == 1 and len(set(endings)) == len(endings):
            for members in group:
                if members is not images[0]:
                    images[0].update(members)
                    members.clear()
    return [(key, members) for key, members in samples if members]


def _has_image(members: Iterable[str]) -> bool:
    return any(ending.rpartition(".")[2] in IMAGE and ending not in (MASK, SEGMENTS) for ending in members)


@dataclass(frozen=True)
class Members:
    """The members that are read of a sample, and those that it needs.

    Attributes:
        endings: a label for each member, and the endings or patterns with `*` that it may have, the preferred first.
        needed: what a sample needs, such as "caption", and the labels of which it needs at least one.
        advice: what to do if no sample has the needed members.
    """

    endings: tuple[tuple[str, Labels], ...]
    needed: tuple[tuple[str, Labels], ...]
    advice: str

    @property
    def labels(self) -> Labels:
        return tuple(label for label, _ in self.endings)

    def missing(self, endings: Sequence[str]) -> str:
        """Say what a sample with these members lacks, and why if it has members that are not read."""
        found = self.find(tuple(endings))
        lack = [f"no {name}" for name, labels in self.needed if not any(found[label] for label in labels)]
        read = {ending for matches in found.values() for ending in matches}
        others = [f".{ending}" for ending in endings if ending not in read | _USUAL]
        advice = f", but {', '.join(others[:3])}: {ENDINGS_ADVICE}" if others else ""
        return f"has {' and '.join(lack)}{advice}"

    def find(self, endings: Labels) -> dict[str, list[str]]:
        """Return for each label the endings that fit it, the preferred one first."""
        return {
            label: [ending for pattern in patterns for ending in endings if fnmatchcase(ending, pattern)]
            for label, patterns in self.endings
        }


@lru_cache
def choose(endings: Labels, members: Members) -> list[tuple[str, list[int]]]:
    """Choose the members to read of a sample with these endings: the column of each label, -1 if it has none.

    The result is empty if the sample lacks a needed member. If patterns match several members (`1.jpg`, `1.txt`,
    `2.jpg` and `2.txt` of files named `photo.1.jpg` …), each complete group of members with the same ending before the
    last dot is a sample: the result has the group ("1") and the columns of each.
    """

    def columns_in(group: str | None) -> list[int]:
        """Return the columns, of one group or of all endings; [] if a needed member is missing."""
        chosen = {
            label: next((e for e in matches if group is None or e.rpartition(".")[0] == group), None)
            for label, matches in members.find(endings).items()
        }
        is_complete = all(any(chosen[label] for label in labels) for _, labels in members.needed)
        return [-1 if e is None else endings.index(e) for e in chosen.values()] if is_complete else []

    if any("*" in pattern for _, patterns in members.endings for pattern in patterns):
        groups = dict.fromkeys(ending.rpartition(".")[0] for ending in endings)
        found = [(group, columns) for group in groups if (columns := columns_in(group))]
        if len(found) > 1:
            return found
    return [("", columns)] if (columns := columns_in(None)) else []


@lru_cache
def count_passed_over(endings: Labels, members: Members) -> int:
    """Count the samples that would be found if the endings could follow any dot of a file's name."""
    wide = tuple((label, (*usual, *(f"*.{ending}" for ending in usual))) for label, usual in members.endings)
    return len(choose(endings, replace(members, endings=wide))) - len(choose(endings, members))

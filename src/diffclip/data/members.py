"""The members that are read of a sample, by their endings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import lru_cache

from diffclip.data.images import IMAGE

Labels = tuple[str, ...]
_USUAL = {*IMAGE, "txt", "json", "cls"}
ENDINGS_ADVICE = (
    "an ending starts at the first dot of the file's name; rename the files, or give the endings or patterns such as "
    "'*.jpg' to train on as data.image_key and data.text_key"
)


@dataclass(frozen=True)
class Members:
    """The members that are read of a sample, and those that it needs.

    Attributes:
        endings: a label for each member, and the endings it may have, the preferred one first. An ending may be a
            pattern with `*`.
        needed: what a sample needs, such as "caption", and the labels of which it needs at least one.
        advice: what to do if no sample has the needed members.
    """

    endings: tuple[tuple[str, tuple[str, ...]], ...]
    needed: tuple[tuple[str, Labels], ...]
    advice: str

    @property
    def labels(self) -> Labels:
        return tuple(label for label, _ in self.endings)

    def missing(self, endings: Sequence[str]) -> str:
        """Say what a sample with these members lacks, and why if it has members that are not read."""
        matches = dict(zip(self.labels, _matches(tuple(endings), self.endings), strict=True))
        lack = [f"no {name}" for name, labels in self.needed if not any(matches[label] for label in labels)]
        read = [column for columns in matches.values() for column in columns]
        others = [ending for column, ending in enumerate(endings) if column not in read]
        others = [f".{ending}" for ending in others if ending not in _USUAL]
        if not others:
            return f"has {' and '.join(lack)}"
        return f"has {' and '.join(lack)}, but {', '.join(others[:3])}: {ENDINGS_ADVICE}"

    def passed_over(self, endings: Sequence[str]) -> int:
        """Count the samples that would be found if the endings could follow any dot of a file's name."""
        wide = tuple((label, (*usual, *(f"*.{ending}" for ending in usual))) for label, usual in self.endings)
        return len(choose(tuple(endings), replace(self, endings=wide))) - len(choose(tuple(endings), self))


@lru_cache
def _matches(endings: Labels, patterns: tuple[tuple[str, Labels], ...]) -> list[list[int]]:
    """For each label, the columns of the endings that it may have, the preferred one first."""
    return [
        [n for pattern in wanted for n, ending in enumerate(endings) if fnmatchcase(ending, pattern)]
        for _, wanted in patterns
    ]


@lru_cache
def choose(endings: Labels, members: Members) -> list[tuple[str, list[int]]]:
    """Choose the members to read of a sample with these endings: the column of each label, -1 if it has none.

    The result is empty if the sample lacks a needed member. If patterns match several members (`1.jpg`, `1.txt`,
    `2.jpg` and `2.txt` of files named `photo.1.jpg` …), each complete group of members with the same ending before the
    last dot is a sample: the result has the group ("1") and the columns of each.
    """
    matches = _matches(endings, members.endings)

    def complete(columns: list[int]) -> bool:
        chosen = dict(zip(members.labels, columns, strict=True))
        return all(any(chosen[label] >= 0 for label in labels) for _, labels in members.needed)

    first = [found[0] if found else -1 for found in matches]
    if not any("*" in pattern for _, patterns in members.endings for pattern in patterns):
        return [("", first)] if complete(first) else []
    stems = dict.fromkeys(ending.rpartition(".")[0] for ending in endings)
    groups = [
        (stem, [next((n for n in found if endings[n].rpartition(".")[0] == stem), -1) for found in matches])
        for stem in stems
    ]
    groups = [group for group in groups if complete(group[1])]
    return groups if len(groups) > 1 else [("", first)] if complete(first) else []

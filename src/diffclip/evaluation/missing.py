"""Which sets of a suite are not there."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from diffclip.data.published_sets import PUBLISHED, Missing, missing_sets
from diffclip.evaluation.splits import TRAIN
from diffclip.evaluation.suite import Entry
from diffclip.evaluation.tasks import LEARNING


def missing_of(entries: Iterable[Entry], root: Path | None) -> dict[str, Missing]:
    """The published sets by name that `entries` need and that do not lie below `root`: none of the splits that would
    do, or not the one to learn from."""
    missing: dict[str, Missing] = {}
    for entry in entries:
        if entry.dataset in PUBLISHED:
            lacking = [missing_sets([(entry.dataset, split)], root) for split in entry.splits]
            if all(lacking):
                missing.setdefault(entry.dataset, lacking[0][0])
            elif entry.task in LEARNING:
                for one in missing_sets([(entry.dataset, TRAIN)], root):
                    missing.setdefault(entry.dataset, one)
    return missing

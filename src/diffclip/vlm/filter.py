"""The part of LLaVA's JSON whose pictures lie in one folder, such as the COCO part of its instruction mix."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffclip.errors import InputError
from diffclip.files import check_writable, printable, write_atomically
from diffclip.vlm.conversations import missing_pictures, parse_sample, read_samples

_NAMED = 3
_FOLDERS = 10


@dataclass
class Filtered:
    """How many samples went where: `kept`, `other_pictures`, `text_only`, `missing` and `unusable` sum to `samples`."""

    source: str
    target: str
    images: str
    samples: int
    kept: int = 0
    other_pictures: int = 0  # another folder's
    text_only: int = 0
    missing: int = 0  # the picture is not in the folder
    unusable: int = 0  # training would refuse the sample
    faults: list[str] = field(default_factory=list)  # of the first unusable ones
    folders: dict[str, int] = field(default_factory=dict)  # samples by their picture's first folder

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def filter_conversations(
    source: str | Path, target: str | Path, images: str, pictures: str | Path | None = None
) -> Filtered:
    """Write to `target` the samples of `source` whose picture's path starts with `images`, as they are and in order.

    Samples without a picture are left out, and so are those that `read_conversations` would refuse.

    Args:
        source: LLaVA's JSON.
        target: JSON of the same form, a sample a line.
        images: how the path starts, such as "coco/".
        pictures: also leave out samples whose picture is not in this folder.

    Raises:
        InputError: `source` cannot be read, is `target`, or nothing of it would be left.
    """
    source, target = Path(source), Path(target)
    if target.exists() and source.exists() and target.samefile(source):
        raise InputError(f"{target} is the source itself: give the result another name")
    check_writable(target)
    samples = read_samples(source)
    found = Filtered(str(source), str(target), images, len(samples))
    folders: Counter[str] = Counter()
    kept: list[dict[str, Any]] = []
    for index, sample in enumerate(samples):
        image = sample.get("image") if isinstance(sample, dict) else None
        if isinstance(sample, dict) and image is None:
            found.text_only += 1
            continue
        if isinstance(image, str):
            folders[_first_folder(image)] += 1
            if not image.startswith(images):
                found.other_pictures += 1
                continue
        try:
            parse_sample(sample, index, str(source), Path())
        except InputError as error:
            found.unusable += 1
            if found.unusable <= _NAMED:
                found.faults.append(str(error))
            continue
        kept.append(sample)
    found.folders = dict(folders.most_common())
    if pictures is not None and kept:
        lacking = missing_pictures(Path(pictures), {sample["image"] for sample in kept})
        found.missing = sum(sample["image"] in lacking for sample in kept)
        kept = [sample for sample in kept if sample["image"] not in lacking]
    found.kept = len(kept)
    if not kept:
        raise InputError(_nothing_left(found, pictures))
    _write(target, kept)
    return found


def _first_folder(image: str) -> str:
    folder, slash, _ = image.partition("/")
    return folder + slash if slash else "(no folder)"


def _nothing_left(found: Filtered, pictures: str | Path | None) -> str:
    if found.missing:
        return (
            f"none of the {found.missing:,} pictures of {found.source} under {found.images!r} is in {pictures}: give "
            f"the folder that holds {found.images!r}"
        )
    if not (found.folders or found.faults):
        return f"{found.source} has no sample with a picture: give conversations about pictures"
    if not found.folders or found.other_pictures < sum(found.folders.values()):
        return f"nothing usable is left of {found.source}: {found.faults[0]}"
    listed = [
        f"{printable(folder)} ({number:,})" for folder, number in list(found.folders.items())[:_FOLDERS]
    ]
    rest = len(found.folders) - len(listed)
    more = f" and {rest:,} more" if rest else ""
    return (
        f"no picture of {found.source} has a path that starts with {found.images!r}: choose --images from "
        f"{', '.join(listed)}{more}"
    )


def _write(target: Path, samples: list[dict[str, Any]]) -> None:
    with write_atomically(target) as temporary, temporary.open("w", encoding="utf-8") as handle:
        handle.write("[\n")
        for number, sample in enumerate(samples):
            handle.write(",\n" if number else "")
            handle.write(json.dumps(sample))
        handle.write("\n]\n")

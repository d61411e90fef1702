"""Write the built-in set as folders in clip_benchmark's layout, with minimal pairs and questions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from diffclip.data.published_sets import SHIFTS
from diffclip.data.workers import in_processes
from diffclip.errors import InputError, explained
from diffclip.files import disk_errors, others_wait, write_text
from diffclip.scenes.export import write_choices, write_pairs, write_questions, write_shard
from diffclip.scenes.phrases import NUMBERS
from diffclip.scenes.scene import Style, draw_scene
from diffclip.scenes.vocabulary import COLOR_TEMPLATES, COLORS, COUNT_TEMPLATES, COUNTS, SHAPES, TEMPLATES

SHARD = 1000
"""Images of a tar."""
PAIRS = 60
"""Most minimal pairs per pattern."""
QUESTIONED = 500
"""Most images with questions, as in POPE, and most with classes of pixels."""
FORMAT = 2
"""Counts up when the same settings draw other images, so that older folders are not reused."""
MANIFEST = "scenes.json"
"""The file of the settings that decide every file of a folder."""

Progress = Callable[[str, int, int | None], None]
Set = tuple[str, str, Style, int]
"""A folder of shards: set, split, style and number of samples."""
_PROMPTS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "colours": (tuple(COLORS), COLOR_TEMPLATES),
    "counts": ([NUMBERS[count] for count in COUNTS], COUNT_TEMPLATES),
}


class Job(NamedTuple):
    """One file or folder to write: `write(target, *arguments)` makes it, drawing `images` images."""

    target: Path
    write: Callable[..., None]
    arguments: tuple[object, ...]
    images: int

    def run(self) -> int:
        if not self.target.exists():
            self.write(self.target, *self.arguments)
        return self.images


def write_scenes(
    folder: str | Path,
    size: int = 64,
    train: int = 20_000,
    val: int = 1_000,
    test: int = 1_000,
    seed: int = 0,
    progress: Progress | None = None,
    workers: int = 1,
    distractors: int = 0,
) -> bool:
    """Write captions, classes, shifted classes, minimal pairs and questions below `folder`.

    `captions/{train,val,test}` hold that many images. `shapes/{train,test}` hold about a quarter of `train`
    and about `test` images with one object, the same number of each shape, and `colours` the same images
    by color. `segmentation/test` holds at most QUESTIONED scenes of `captions/test` with the shape of each pixel.
    `counts/test` holds about `test` scenes by their number of objects. `shapes-sketch`, `shapes-recoloured` and
    `shapes-noisy` are `shapes/test` shifted; `mmvp` and `scenes-sugarcrepe` hold the same pairs, at most PAIRS per
    pattern, and `questions` asks about at most QUESTIONED images, all three without distractors. Every file appears
    whole or not at all: a folder left by a kill is completed by the next call.

    Args:
        size: edge of the images in pixels.
        progress: called after each file with "images", how many more are done, and of how many.
        workers: processes that draw; above 1 the caller's main module must be importable.
        distractors: small objects in each image that no caption mentions, see `draw_scene`.

    Returns:
        True when something was drawn, False when the folder was complete with these settings already.

    Raises:
        InputError: bad settings, a folder with other settings or other content, or a disk that refuses.
    """
    counts = {"train": train, "val": val, "test": test}
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} {count} is too few: give at least one image per split")
    # other bad settings are refused before anything is written
    draw_scene(0, seed=seed, size=size, distractors=distractors)
    settings = {"size": size, **counts, "seed": seed, "format": FORMAT, "distractors": distractors}
    folder, sets = Path(folder), list(_sets(train, val, test))
    jobs = list(_jobs(folder, sets, settings))
    names = {job.target.relative_to(folder).parts[0] for job in jobs}
    _check_folder(folder, settings, names)
    if all(job.target.exists() for job in jobs):
        return False  # the folder may be read-only
    # another process would take the files that this one is writing for those of a kill
    with others_wait(folder / ".lock"):
        if all(job.target.exists() for job in jobs):
            return False
        with disk_errors(folder):
            for half in [half for name in names for half in (folder / name).rglob(".*.tmp")]:
                shutil.rmtree(half) if half.is_dir() else half.unlink()
        write_text(folder / MANIFEST, json.dumps(settings, indent=2) + "\n")
        _write_notes(folder, sets)
        total = sum(job.images for job in jobs)
        for images in in_processes(Job.run, jobs, workers):
            if progress is not None:
                progress("images", images, total)
    return True


def _check_folder(folder: Path, settings: Mapping[str, int], names: set[str]) -> None:
    """Raise unless `folder` holds scenes of the same settings, or nothing called as one of `names`."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        if taken := [name for name in sorted(names) if (folder / name).exists()]:
            raise InputError(f"{folder} holds other things ({taken[0]}): choose an empty or new folder")
        return
    with explained(f"{manifest} cannot be read", f"remove {folder} or choose another folder"):
        # folders from before there were distractors have none
        found = {"distractors": 0, **json.loads(manifest.read_text(encoding="utf-8"))}
    differing = [
        f"{name} {found.get(name)}" for name in sorted(settings) if found.get(name) != settings[name]
    ]
    if differing:
        raise InputError(
            f"{folder} holds scenes with other settings ({', '.join(differing)}): remove it, choose another folder "
            "or ask for those settings"
        )


def _sets(train: int, val: int, test: int) -> Iterator[Set]:
    # the same number of each shape
    learned, tested = (-(-count // len(SHAPES)) * len(SHAPES) for count in (-(-train // 4), test))
    for split, count in (("train", train), ("val", val), ("test", test)):
        yield "captions", split, "plain", count
    yield "segmentation", "test", "plain", min(QUESTIONED, test)
    for name in ("shapes", "colours"):
        yield name, "train", "plain", learned
        yield name, "test", "plain", tested
    yield "counts", "test", "plain", tested
    for style in SHIFTS:
        yield f"shapes-{style}", "test", style, tested


def _jobs(folder: Path, sets: Sequence[Set], settings: Mapping[str, int]) -> Iterator[Job]:
    test, size, seed, distractors = (settings[name] for name in ("test", "size", "seed", "distractors"))
    for name, split, style, count in sets:
        for number, start in enumerate(range(0, count, SHARD)):
            indices = range(start, min(start + SHARD, count))
            arguments = (name.split("-")[0], split, style, size, seed, distractors, indices)
            yield Job(folder / name / split / f"{number}.tar", write_shard, arguments, len(indices))
    pairs, images = min(PAIRS, test), min(QUESTIONED, test)
    yield Job(folder / "mmvp", write_pairs, (pairs, size, seed), 18 * pairs)
    yield Job(folder / "scenes-sugarcrepe", write_choices, (pairs, size, seed), 18 * pairs)
    yield Job(folder / "questions", write_questions, (images, size, seed), images)


def _write_notes(folder: Path, sets: Sequence[Set]) -> None:
    """Write the small text files that clip_benchmark's layout has beside the shards."""
    for name, split, _style, count in sets:
        write_text(folder / name / split / "nshards.txt", f"{-(-count // SHARD)}\n")
        if name == "captions":
            write_text(folder / name / "dataset_type.txt", "retrieval\n")
        else:
            names, templates = _PROMPTS.get(name, (SHAPES, TEMPLATES))
            write_text(folder / name / "classnames.txt", "\n".join(names) + "\n")
            write_text(folder / name / "zeroshot_classification_templates.txt", "\n".join(templates) + "\n")

"""Write the built-in set as folders in clip_benchmark's layout, with minimal pairs and questions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from diffclip.data.published_sets import SHIFTS
from diffclip.data.workers import in_processes
from diffclip.errors import InputError
from diffclip.files import disk_errors, others_wait, write_text
from diffclip.scenes.export import write_choices, write_pairs, write_questions, write_shard
from diffclip.scenes.layout import LARGEST_SEED
from diffclip.scenes.phrases import NUMBERS
from diffclip.scenes.scene import Style, check_distractors, check_size
from diffclip.scenes.vocabulary import COLOR_TEMPLATES, COLORS, COUNT_TEMPLATES, COUNTS, SHAPES, TEMPLATES

SHARD = 1000
"""Images of a tar."""
PAIRS = 60
"""Most minimal pairs a pattern."""
QUESTIONED = 500
"""Most images with questions, as in POPE, and most with classes of pixels."""
FORMAT = 2
"""Counts up when the same settings draw other images, so that older folders are not reused."""
MANIFEST = "scenes.json"

Progress = Callable[[str, int, int | None], None]
_PROMPTS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "colours": (tuple(COLORS), COLOR_TEMPLATES),
    "counts": ([NUMBERS[count] for count in COUNTS], COUNT_TEMPLATES),
}


@dataclass(frozen=True)
class Settings:
    """The settings that decide every file of a folder; `scenes.json` has them."""

    size: int
    train: int
    val: int
    test: int
    seed: int
    format: int = FORMAT
    distractors: int = 0  # folders from before there were any have none


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
    `shapes-noisy` are `shapes/test` shifted; `mmvp` and `scenes-sugarcrepe` hold the same pairs, at most PAIRS a
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
    folder, settings = Path(folder), Settings(size, train, val, test, seed, distractors=distractors)
    check_size(size)
    check_distractors(distractors)
    for name, count in (("train", train), ("val", val), ("test", test)):
        if count < 1:
            raise InputError(f"{name} {count} is too few: give at least one image a split")
    if not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed {seed} is out of range: give a whole number from 0 to {LARGEST_SEED}")
    jobs = list(_jobs(folder, settings))
    names = {job.target.relative_to(folder).parts[0] for job in jobs}
    _check_folder(folder, settings, names)
    if all(job.target.exists() for job in jobs):
        return False  # the folder may be read-only
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    # another process would take the files that this one is writing for those of a kill
    with others_wait(folder / ".lock"):
        _check_folder(folder, settings, names)  # another process may have drawn others meanwhile
        if all(job.target.exists() for job in jobs):
            return False
        with disk_errors(folder):
            for half in [half for name in names for half in (folder / name).rglob(".*.tmp")]:
                shutil.rmtree(half) if half.is_dir() else half.unlink()
        write_text(folder / MANIFEST, json.dumps(asdict(settings), indent=2) + "\n")
        for path, text in _notes(folder, settings):
            write_text(path, text)
        total = sum(job.images for job in jobs)
        for images in in_processes(Job.run, jobs, workers):
            if progress is not None:
                progress("images", images, total)
    return True


def _check_folder(folder: Path, settings: Settings, names: set[str]) -> None:
    """Raise unless `folder` holds scenes of the same settings, or nothing called as one of `names`."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        for name in sorted(names):
            if (folder / name).exists():
                raise InputError(f"{folder} holds other things ({name}): choose an empty or new folder")
        return
    try:
        found = asdict(Settings(**json.loads(manifest.read_text(encoding="utf-8"))))
    except (ValueError, TypeError, OSError):
        raise InputError(f"{manifest} cannot be read: remove {folder} or choose another folder") from None
    differing = sorted(name for name, value in asdict(settings).items() if found[name] != value)
    if differing:
        what = ", ".join(f"{name} {found[name]}" for name in differing)
        raise InputError(
            f"{folder} holds scenes with other settings ({what}): remove it, choose another folder or "
            "ask for those settings"
        )


def _sets(settings: Settings) -> Iterator[tuple[str, str, Style, int]]:
    """Every folder of shards: set, split, style and number of samples."""
    # the same number of each shape
    train, test = (
        -(-count // len(SHAPES)) * len(SHAPES) for count in (-(-settings.train // 4), settings.test)
    )
    yield "captions", "train", "plain", settings.train
    yield "captions", "val", "plain", settings.val
    yield "captions", "test", "plain", settings.test
    yield "segmentation", "test", "plain", min(QUESTIONED, settings.test)
    for name in ("shapes", "colours"):
        yield name, "train", "plain", train
        yield name, "test", "plain", test
    yield "counts", "test", "plain", test
    for style in SHIFTS:
        yield f"shapes-{style}", "test", style, test


def _jobs(folder: Path, settings: Settings) -> Iterator[Job]:
    for name, split, style, count in _sets(settings):
        for number, start in enumerate(range(0, count, SHARD)):
            indices = range(start, min(start + SHARD, count))
            arguments = (
                name.split("-")[0],
                split,
                style,
                settings.size,
                settings.seed,
                settings.distractors,
                indices,
            )
            yield Job(folder / name / split / f"{number}.tar", write_shard, arguments, len(indices))
    pairs, images = min(PAIRS, settings.test), min(QUESTIONED, settings.test)
    yield Job(folder / "mmvp", write_pairs, (pairs, settings.size, settings.seed), 18 * pairs)
    yield Job(folder / "scenes-sugarcrepe", write_choices, (pairs, settings.size, settings.seed), 18 * pairs)
    yield Job(folder / "questions", write_questions, (images, settings.size, settings.seed), images)


def _notes(folder: Path, settings: Settings) -> Iterator[tuple[Path, str]]:
    """The small text files that clip_benchmark's layout has beside the shards."""
    for name, split, _style, count in _sets(settings):
        yield folder / name / split / "nshards.txt", f"{-(-count // SHARD)}\n"
        if name == "captions":
            yield folder / name / "dataset_type.txt", "retrieval\n"
        else:
            names, templates = _PROMPTS.get(name, (SHAPES, TEMPLATES))
            yield folder / name / "classnames.txt", "\n".join(names) + "\n"
            yield folder / name / "zeroshot_classification_templates.txt", "\n".join(templates) + "\n"

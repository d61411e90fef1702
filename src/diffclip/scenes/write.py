"""Write the built-in set as folders in clip_benchmark's layout, with minimal pairs and questions."""

from __future__ import annotations

import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from diffclip.data.shifts import SHIFTS
from diffclip.errors import InputError
from diffclip.files import disk_errors, write_text
from diffclip.scenes.export import write_pairs, write_questions, write_shard
from diffclip.scenes.layout import LARGEST_SEED
from diffclip.scenes.scene import Style, check_size
from diffclip.scenes.vocabulary import COLOUR_TEMPLATES, COLOURS, SHAPES, TEMPLATES

SHARD = 1000
"""Pictures a tar."""
PAIRS = 60
"""Most minimal pairs a pattern."""
QUESTIONED = 500
"""Most pictures with questions, as in POPE."""
FORMAT = 2
"""Counts up when the same settings draw other pictures, so that older folders are not reused."""

MANIFEST = "scenes.json"
MARKER = "scenes.unfinished.json"
FOLDERS = ("captions", "shapes", "colours", *(f"shapes-{style}" for style in SHIFTS), "mmvp", "questions")

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Settings:
    """What determines every file of a folder."""

    size: int
    train: int
    val: int
    test: int
    seed: int
    format: int = FORMAT

    def check(self) -> None:
        check_size(self.size)
        for name in ("train", "val", "test"):
            if getattr(self, name) < 1:
                raise InputError(
                    f"{name} {getattr(self, name)} is too few: give at least one picture a split"
                )
        if not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(
                f"seed {self.seed} is out of range: give a whole number from 0 to {LARGEST_SEED}"
            )


@dataclass(frozen=True)
class Job:
    """One file or folder to write: `write(target, *arguments)` makes it, drawing `pictures` pictures."""

    target: Path
    write: Callable[..., None]
    arguments: tuple[object, ...]
    pictures: int

    def run(self) -> int:
        if not self.target.exists():
            self.write(self.target, *self.arguments)
        return self.pictures


def write_scenes(
    folder: str | Path,
    size: int = 64,
    train: int = 20_000,
    val: int = 1_000,
    test: int = 1_000,
    seed: int = 0,
    progress: Progress | None = None,
    workers: int = 1,
) -> bool:
    """Write captions, classes, shifted classes, minimal pairs and questions below `folder`.

    `captions/{train,val,test}` hold that many pictures. `shapes/{train,test}` hold about a quarter of `train`
    and about `test` pictures with one object, the same number of each shape, and `colours` the same pictures
    by colour. `shapes-sketch`, `shapes-recoloured` and `shapes-noisy` are `shapes/test` shifted; `mmvp` holds
    at most PAIRS pairs a pattern and `questions` asks about at most QUESTIONED pictures. Every file appears
    whole or not at all, and `scenes.json` comes last: a folder left by a kill is completed by the next call.

    Args:
        size: edge of the pictures in pixels.
        progress: called with (pictures done, pictures in all) after each file.
        workers: processes that draw; above 1 the caller's main module must be importable.

    Returns:
        True when something was drawn, False when the folder was complete with these settings already.

    Raises:
        InputError: bad settings, a folder with other settings or other content, or a disk that refuses.
    """
    folder = Path(folder)
    settings = Settings(size, train, val, test, seed)
    settings.check()
    jobs = list(_jobs(folder, settings))
    if (folder / MANIFEST).exists():
        _refuse_others(folder, settings)
        if all(job.target.exists() for job in jobs):
            return False
    else:
        _clear_remains(folder, settings)
    write_text(folder / MARKER, _describe(settings))
    _run(jobs, progress, workers)
    for path, text in _notes(folder, settings):
        write_text(path, text)
    write_text(folder / MANIFEST, _describe(settings))
    (folder / MARKER).unlink()
    return True


def _describe(settings: Settings) -> str:
    return json.dumps(asdict(settings), indent=2) + "\n"


def _refuse_others(folder: Path, settings: Settings) -> None:
    """Raise unless the folder's manifest says the same settings."""
    try:
        found = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        differing = sorted(k for k, v in asdict(settings).items() if found.get(k) != v)
    except (ValueError, AttributeError, OSError):
        raise InputError(
            f"{folder / MANIFEST} cannot be read: remove {folder} or choose another folder"
        ) from None
    if differing:
        what = ", ".join(f"{name} {found.get(name)}" for name in differing)
        raise InputError(
            f"{folder} holds scenes with other settings ({what}): remove it, choose another folder or "
            "ask for those settings"
        )


def _clear_remains(folder: Path, settings: Settings) -> None:
    """Keep what an interrupted call with the same settings finished; remove what other settings left."""
    marker = folder / MARKER
    if marker.exists() and marker.read_text(encoding="utf-8") == _describe(settings):
        for half in list(folder.rglob(".*.tmp")):
            shutil.rmtree(half) if half.is_dir() else half.unlink()
        return
    if folder.is_dir():
        names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
        strangers = sorted(names - {*FOLDERS, MARKER})
        if strangers and names & set(FOLDERS) and not marker.exists():
            raise InputError(f"{folder} holds other things ({strangers[0]}): choose an empty or new folder")
        with disk_errors(folder):
            for name in names & set(FOLDERS):
                shutil.rmtree(folder / name)


def _rounded(count: int) -> int:
    """At least `count`, and the same number of each shape."""
    return -(-count // len(SHAPES)) * len(SHAPES)


def _sets(settings: Settings) -> Iterator[tuple[str, str, Style, int]]:
    """Every folder of shards: set, split, style and number of samples."""
    for split in ("train", "val", "test"):
        yield "captions", split, "plain", getattr(settings, split)
    yield "shapes", "train", "plain", _rounded(-(-settings.train // 4))
    yield "shapes", "test", "plain", _rounded(settings.test)
    yield "colours", "train", "plain", _rounded(-(-settings.train // 4))
    yield "colours", "test", "plain", _rounded(settings.test)
    for style in SHIFTS:
        yield f"shapes-{style}", "test", style, _rounded(settings.test)


def _jobs(folder: Path, settings: Settings) -> Iterator[Job]:
    for name, split, style, count in _sets(settings):
        for number, start in enumerate(range(0, count, SHARD)):
            indices = range(start, min(start + SHARD, count))
            arguments = (name.split("-")[0], split, style, settings.size, settings.seed, indices)
            yield Job(folder / name / split / f"{number}.tar", write_shard, arguments, len(indices))
    pairs, pictures = min(PAIRS, settings.test), min(QUESTIONED, settings.test)
    yield Job(folder / "mmvp", write_pairs, (pairs, settings.size, settings.seed), 18 * pairs)
    yield Job(folder / "questions", write_questions, (pictures, settings.size, settings.seed), pictures)


def _notes(folder: Path, settings: Settings) -> Iterator[tuple[Path, str]]:
    """The small text files that clip_benchmark's layout has beside the shards."""
    for name, split, _style, count in _sets(settings):
        yield folder / name / split / "nshards.txt", f"{-(-count // SHARD)}\n"
        if name == "captions":
            yield folder / name / "dataset_type.txt", "retrieval\n"
        else:
            names, templates = (COLOURS, COLOUR_TEMPLATES) if name == "colours" else (SHAPES, TEMPLATES)
            yield folder / name / "classnames.txt", "".join(f"{one}\n" for one in names)
            yield (
                folder / name / "zeroshot_classification_templates.txt",
                "".join(f"{template}\n" for template in templates),
            )


def _run(jobs: list[Job], progress: Progress | None, workers: int) -> None:
    total = sum(job.pictures for job in jobs)
    done = 0
    for pictures in _results(jobs, workers):
        done += pictures
        if progress is not None:
            progress(done, total)


def _results(jobs: list[Job], workers: int) -> Iterator[int]:
    if workers <= 1:
        yield from (job.run() for job in jobs)
        return
    # forking a process that may hold threads (torch does) can deadlock
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = [pool.submit(job.run) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()

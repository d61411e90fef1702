"""Write the built-in set as folders in clip_benchmark's layout, with minimal pairs and questions."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffclip.data.images import encode
from diffclip.data.published_sets import CHOICE_IMAGES, PAIR_IMAGES, PATTERNS, SHIFTS, built_in_folder
from diffclip.data.shards import add_member
from diffclip.data.workers import Progress, map_processes
from diffclip.errors import InputError, explain_errors
from diffclip.files import explain_disk_errors, hold_lock, write_atomically, write_text
from diffclip.scenes.captions import NUMBERS
from diffclip.scenes.pairs import minimal_pair
from diffclip.scenes.questions import NEGATIVES, image_name, question_indices, question_scene, questions
from diffclip.scenes.scene import Scene, Style, draw_scene
from diffclip.scenes.vocabulary import COLOR_TEMPLATES, COLORS, COUNT_TEMPLATES, COUNTS, SHAPES, TEMPLATES

SHARD = 1000  # images per tar
PAIRS = 60  # maximum number of minimal pairs per pattern
QUESTIONED = 500  # maximum number of images with questions, as in POPE, and with segmentation
FORMAT = 2  # raised when the same settings give other images, so that older folders are not reused
MANIFEST = "scenes.json"  # holds the settings, which determine every file of a folder

QUESTION_IMAGES = "images"
_KEYS = {"color": "colour", "center": "centre"}  # spelling of these names in files, which must not change

SetKind = Literal["captions", "shapes", "colours", "counts", "segmentation"]
SINGLE_OBJECTS: tuple[SetKind, ...] = ("shapes", "colours")  # the same images, labeled by shape or color
_PROMPTS: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "colours": (tuple(COLORS), COLOR_TEMPLATES),
    "counts": ([NUMBERS[count] for count in COUNTS], COUNT_TEMPLATES),
}


class DrawnSet(NamedTuple):
    """A folder of shards: its name, what it holds, split, style and number of samples."""

    folder: str
    kind: SetKind
    split: str
    style: Style
    samples: int


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
    progress: Progress = lambda what, done, total: None,
    workers: int = 1,
    distractors: int = 0,
) -> bool:
    """Write captions, classes, shifted classes, minimal pairs and questions below `folder`. Return False if the folder
    was complete with these settings already.

    `captions/{train,val,test}` hold that many images. `shapes/{train,test}` hold about a quarter of `train` and about
    `test` images with one object, the same number of each shape. `colours` holds the same images, labeled by color.
    `segmentation/test` holds at most QUESTIONED scenes of `captions/test` with the shape of each pixel. `counts/test`
    holds about `test` scenes, labeled by their number of objects. `shapes-sketch`, `shapes-recoloured` and
    `shapes-noisy` are shifted versions of `shapes/test`. `mmvp` and `scenes-sugarcrepe` hold the same pairs, at most
    PAIRS per pattern. `questions` asks about at most QUESTIONED images. The last three have no distractors. Every file
    appears whole or not at all, and the next call completes a folder that an interrupted call left behind.

    Args:
        size: edge of the images in pixels.
        progress: called after each file with "images", the number of its images and the number of all.
        workers: number of processes that draw.
        distractors: small objects in each image that no caption mentions, see `draw_scene`.

    Raises:
        InputError: bad settings, a folder with other settings or other content, or a disk that cannot be written.
    """
    counts = {"train": train, "val": val, "test": test}
    for name, count in counts.items():
        if count < 1:
            raise InputError(f"{name} {count} is too few: give at least one image per split")
    # check the other settings before anything is written
    draw_scene(0, seed=seed, size=size, distractors=distractors)
    settings = {"size": size, **counts, "seed": seed, "format": FORMAT, "distractors": distractors}
    folder, sets = Path(folder), list(_sets(train, val, test))
    jobs = list(_jobs(folder, sets, settings))
    names = {job.target.relative_to(folder).parts[0] for job in jobs}
    if _is_complete(folder, settings, jobs, names):
        return False  # the folder may be read-only
    # without the lock, another process would remove our temporary files as leftovers of a killed process
    with hold_lock(folder / ".lock"):
        if _is_complete(folder, settings, jobs, names):  # drawn by another process
            return False
        with explain_disk_errors(folder):
            for leftover in [leftover for name in names for leftover in (folder / name).rglob(".*.tmp")]:
                shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()
        write_text(folder / MANIFEST, json.dumps(settings, indent=2) + "\n")
        _write_notes(folder, sets)
        total = sum(job.images for job in jobs)
        for images in map_processes(Job.run, jobs, workers if workers > 1 else 0):
            progress("images", images, total)
    return True


def draw_built_in(workers: int = 1) -> None:
    """Draw the built-in sets into the user's cache folder with `workers` processes, unless they are there."""
    folder = built_in_folder()
    if not folder.exists():
        line = f"drawing the built-in scenes into {folder}, once, for about a minute"
        print(f"diffclip: {line}", file=sys.stderr)
    try:
        write_scenes(folder, size=64, train=4000, val=500, test=1000, seed=0, workers=workers)
    except InputError as error:
        raise InputError(f"{error}; XDG_CACHE_HOME names the folder of caches") from None


def _is_complete(
    folder: Path, settings: Mapping[str, int], jobs: Sequence[Job], names: Iterable[str]
) -> bool:
    """Tell whether all jobs are done. Raise `InputError` if `folder` holds scenes with other settings, or other content
    with one of `names`."""
    manifest = folder / MANIFEST
    if not manifest.exists():
        if taken := [name for name in sorted(names) if (folder / name).exists()]:
            raise InputError(f"{folder} holds other things ({taken[0]}): choose an empty or new folder")
        return False
    with explain_errors(f"{manifest} cannot be read", f"remove {folder} or choose another folder"):
        # folders from before distractors existed lack this setting
        saved = {"distractors": 0, **json.loads(manifest.read_text(encoding="utf-8"))}
    if names := [name for name in sorted(settings) if saved.get(name) != settings[name]]:
        other = ", ".join(f"{name} {saved.get(name)}" for name in names)
        advice = "remove it, choose another folder or ask for those settings"
        raise InputError(f"{folder} holds scenes with other settings ({other}): {advice}")
    return all(job.target.exists() for job in jobs)


def _sets(train: int, val: int, test: int) -> Iterator[DrawnSet]:
    # rounded up to multiples of the number of shapes, so that each shape is equally frequent
    train_count, test_count = (-(-count // len(SHAPES)) * len(SHAPES) for count in (-(-train // 4), test))
    for split, count in (("train", train), ("val", val), ("test", test)):
        yield DrawnSet("captions", "captions", split, "plain", count)
    yield DrawnSet("segmentation", "segmentation", "test", "plain", min(QUESTIONED, test))
    for kind in SINGLE_OBJECTS:
        yield DrawnSet(kind, kind, "train", "plain", train_count)
        yield DrawnSet(kind, kind, "test", "plain", test_count)
    yield DrawnSet("counts", "counts", "test", "plain", test_count)
    for style in SHIFTS:
        yield DrawnSet(f"shapes-{style}", "shapes", "test", style, test_count)


def _jobs(folder: Path, sets: Sequence[DrawnSet], settings: Mapping[str, int]) -> Iterator[Job]:
    test, size, seed, distractors = (settings[name] for name in ("test", "size", "seed", "distractors"))
    for drawn in sets:
        for number, start in enumerate(range(0, drawn.samples, SHARD)):
            indices = range(start, min(start + SHARD, drawn.samples))
            target = folder / drawn.folder / drawn.split / f"{number}.tar"
            yield Job(target, write_shard, (drawn, size, seed, distractors, indices), len(indices))
    pairs, images = min(PAIRS, test), min(QUESTIONED, test)
    yield Job(folder / "mmvp", write_pairs, (pairs, size, seed), 18 * pairs)
    yield Job(folder / "scenes-sugarcrepe", write_choices, (pairs, size, seed), 18 * pairs)
    yield Job(folder / "questions", write_questions, (images, size, seed), images)


def _write_notes(folder: Path, sets: Sequence[DrawnSet]) -> None:
    """Write the small text files that clip_benchmark's layout has beside the shards."""
    for drawn in sets:
        place = folder / drawn.folder
        write_text(place / drawn.split / "nshards.txt", f"{-(-drawn.samples // SHARD)}\n")
        if drawn.kind == "captions":
            write_text(place / "dataset_type.txt", "retrieval\n")
        else:
            names, templates = _PROMPTS.get(drawn.kind, (SHAPES, TEMPLATES))
            write_text(place / "classnames.txt", "\n".join(names) + "\n")
            write_text(place / "zeroshot_classification_templates.txt", "\n".join(templates) + "\n")


def jpeg(image: NDArray[np.uint8]) -> bytes:
    """Encode at quality 95 with full color resolution: halved chroma would smear small objects."""
    return encode(Image.fromarray(image), "JPEG", quality=95, subsampling=0)


def _attributes(scene: Scene) -> dict[str, object]:
    return {
        "captions": scene.captions,
        "background": scene.background,
        "style": scene.style,
        "objects": [
            {_KEYS.get(name, name): value for name, value in vars(thing).items() if name != "mask"}
            | {"centre": [round(value, 2) for value in thing.center]}
            for thing in scene.objects
        ],
    }


def write_shard(
    target: Path, drawn: DrawnSet, size: int, seed: int, distractors: int, indices: Iterable[int]
) -> None:
    """Write one shard of a set: scenes with captions or labels. The index gives the shape or the number of objects."""
    with write_atomically(target) as temporary, tarfile.open(temporary, "w") as tar:
        for index in indices:
            options: dict[str, Any] = {}
            if drawn.kind in SINGLE_OBJECTS:
                options = {"objects": 1, "shape": SHAPES[index % len(SHAPES)]}
            elif drawn.kind == "counts":
                options = {"objects": COUNTS[index % len(COUNTS)]}
            options |= {"split": drawn.split, "seed": seed, "size": size, "style": drawn.style}
            scene = draw_scene(index, distractors=distractors, **options)
            for extension, content in sorted(_members(drawn.kind, scene).items()):
                add_member(tar, f"s{index:07d}.{extension}", content)


def _members(kind: SetKind, scene: Scene) -> dict[str, bytes]:
    """Return the members of a sample by extension."""
    members = {"jpg": jpeg(scene.image)}
    mask = scene.index_mask
    if kind == "segmentation":
        shapes = [0, *(SHAPES.index(thing.shape) + 1 for thing in scene.objects)]
        members["seg.png"] = encode(Image.fromarray(np.array(shapes, np.uint8)[mask]), "PNG")
    else:
        members["mask.png"] = encode(Image.fromarray(mask), "PNG")
    if kind in ("captions", "segmentation"):
        members["txt"] = "\n".join(scene.captions).encode()
    if kind == "captions":
        members["json"] = json.dumps(_attributes(scene)).encode()
    elif kind == "shapes":
        members["cls"] = str(SHAPES.index(scene.objects[0].shape)).encode()
    elif kind == "colours":
        members["cls"] = str(list(COLORS).index(scene.objects[0].color)).encode()
    elif kind == "counts":
        members["cls"] = str(COUNTS.index(len(scene.objects))).encode()
    return members


def _pair_items(pairs: int, size: int, seed: int) -> Iterator[tuple[str, NDArray[np.uint8], str, str]]:
    """Yield pattern, image, its statement and the other image's statement, for `pairs` pairs of each pattern."""
    for pattern in PATTERNS:
        for index in range(pairs):
            images, statements = minimal_pair(pattern, index, seed, size)
            for image, text, other in zip(images, statements, statements[::-1], strict=True):
                yield pattern, image, text, other


def write_pairs(target: Path, pairs: int, size: int, seed: int) -> None:
    """Write a folder in the layout of the published MMVP_VLM: images by pattern and number, and `Questions.csv`.

    Two consecutive rows and images are a pair.
    """
    with write_atomically(target) as temporary:
        rows: list[tuple[object, str, str]] = [("Question ID", "Type", "Statement")]
        for number, (pattern, image, statement, _) in enumerate(_pair_items(pairs, size, seed), 1):
            file = temporary / PAIR_IMAGES / pattern / f"{number}.jpg"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(jpeg(image))
            rows.append((number, pattern, statement))
        with (temporary / "Questions.csv").open("w", newline="", encoding="utf-8") as table:
            csv.writer(table).writerows(rows)


def write_choices(target: Path, pairs: int, size: int, seed: int) -> None:
    """Write the pairs of `write_pairs` in SugarCrepe's layout: one JSON file per pattern and the images that it names.

    The negative caption of an image is the statement about the other image of its pair.
    """
    with write_atomically(target) as temporary:
        (temporary / CHOICE_IMAGES).mkdir(parents=True)
        (temporary / "dataset_type.txt").write_text("sugarcrepe\n", encoding="utf-8")
        files: dict[str, dict[int, dict[str, str]]] = {}
        for pattern, image, caption, negative in _pair_items(pairs, size, seed):
            name = pattern.lower().replace(" ", "_")
            items = files.setdefault(name, {})
            file = f"{name}_{len(items)}.jpg"
            (temporary / CHOICE_IMAGES / file).write_bytes(jpeg(image))
            items[len(items)] = {"filename": file, "caption": caption, "negative_caption": negative}
        for name, items in files.items():
            (temporary / f"{name}.json").write_text(json.dumps(items, indent=1), encoding="utf-8")


def write_questions(
    target: Path,
    images: int,
    size: int,
    seed: int,
    topic: str = "kinds",
    progress: Progress = lambda what, done, total: None,
) -> None:
    """Write a folder with POPE's three question files (JSON lines) and the images that they ask about. `progress` is
    called after each image with "images", 1 and the number of all images."""
    with write_atomically(target) as temporary:
        (temporary / QUESTION_IMAGES).mkdir(parents=True)
        for index in question_indices(images, seed):
            scene = question_scene(index, seed, size)
            (temporary / QUESTION_IMAGES / image_name(index)).write_bytes(jpeg(scene.image))
            progress("images", 1, images)
        for negatives in NEGATIVES:
            lines = [json.dumps(item) + "\n" for item in questions(images, negatives, seed, topic)]
            (temporary / f"coco_pope_{negatives}.json").write_text("".join(lines), encoding="utf-8")

"""Make training shards from a folder of images and a file of captions."""

from __future__ import annotations

import os
import posixpath
import re
import sys
import tarfile
import unicodedata
from collections import Counter
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from diffclip.data.captions import SUFFIXES_OF_CAPTIONS, CaptionsByImage
from diffclip.data.images import IMAGE, encode, image_files, read_image
from diffclip.data.shards import add_member
from diffclip.data.workers import Progress, map_processes
from diffclip.errors import Fault, InputError, sample_fault
from diffclip.files import explain_disk_errors, write_atomically, write_text

SAMPLES = 1000
"""Number of samples per shard."""
_SPLIT = re.compile(r"(?:^|[_.-])(train|val|test)(?:idation|\d{4})?(?:[_.-]|$)")
_SPLITS = ("", "train", "val", "test")
_CAPTION_FILE = re.compile(r"(?!\.).*(caption|token|karpathy|metadata)")
_QUALITY = 95

ShardJob = tuple[Path, list[tuple[str, Path, list[str]]], int | None]


class ShardCounts(NamedTuple):
    """The counts of some shards, and the faults of the images that were left out."""

    shards: int
    samples: int
    captions: int
    faults: list[Fault]


def find_captions(source: Path) -> dict[str, Path]:
    """Find the caption files in a folder of images, by split. The split "" stands for one file for all images.

    If the names of files contain a split (`flickr8k_train_karpathy.txt`, `captions_val2017.json`), only these files are
    used. No file, or several files for one split, raise `InputError`.
    """
    if not source.is_dir():
        raise InputError(f"{source} is not a folder: give the folder that holds the images")
    present = sorted([*source.iterdir(), *(source / "annotations").glob("*")])
    candidates = [file for file in present if file.suffix.lower() in SUFFIXES_OF_CAPTIONS]
    candidates = [file for file in candidates if _CAPTION_FILE.match(file.name.lower())]
    of_splits = [(match[1], file) for file in candidates if (match := _SPLIT.search(file.stem.lower()))]
    chosen = of_splits or [("", file) for file in candidates]
    files = dict(sorted(chosen, key=lambda one: _SPLITS.index(one[0])))
    if len(files) != len(chosen) or not files:
        several = f"several files of captions ({', '.join(file.name for file in candidates[:5])})"
        advice = "name one with --captions FILE"
        if not candidates and any(path.with_suffix(".txt").exists() for path in image_files(source)):
            advice = f"its .txt are of one image each, so pack them as they are: tar -cf 0.tar -C {source} ."
        raise InputError(f"{source} has {several if candidates else 'no file of captions'}: {advice}")
    if unused := ", ".join(file.name for file in candidates if file not in files.values()):
        print(
            f"diffclip: {source}: left out, of no split: {unused}; name what to pack with --captions FILE",
            file=sys.stderr,
        )
    return files


def make_shards(
    source: Path,
    folder: Path,
    captions: CaptionsByImage,
    edge: int | None = None,
    workers: int = 1,
    advance: Progress = lambda what, done, total: None,
) -> ShardCounts:
    """Write the images below `source` that `captions` names into shards, in random order.

    `folder`, which must not exist or be empty, appears when all shards are complete. Scaled images, and files of a type
    that is not in `IMAGE`, become JPEG. Images that are missing, broken or without captions are `faults`.

    Args:
        captions: captions by image: the end of its path, with or without the extension. An end that two images have
            is refused.
        edge: scale images down to this shorter edge; None: do not scale.
        advance: called with "images", the number done since the last call, and the total.

    Raises:
        InputError: no image is found, every image is broken, or `folder` cannot be written.
    """
    uncaptioned = [Fault(name, "has no caption") for name, texts in captions.items() if not texts]
    captions = {name: texts for name, texts in captions.items() if texts}
    found, missing = _find_files(source, captions)
    if not found:
        none = f"none of {len(captions)} images is in {source} (first: {missing[0]})"
        raise InputError(f"{none}: check the folder and the names")
    texts_of: dict[Path, list[str]] = {}
    name_of: dict[Path, str] = {}
    for name, path in found.items():  # one image may have two names, such as `a.jpg` and `./a.jpg`
        texts_of.setdefault(path, []).extend(captions[name])
        name_of.setdefault(path, name)
    paths, samples = list(texts_of), []
    for number, i in enumerate(np.random.default_rng(0).permutation(len(paths)).tolist()):
        stem = re.sub(r"[^A-Za-z0-9-]", "_", Path(name_of[paths[i]]).stem)
        samples.append((f"{number:07d}_{stem}", paths[i], texts_of[paths[i]]))
    parts: list[ShardCounts] = []
    with write_atomically(folder) as temporary:
        temporary.mkdir()
        jobs = [
            (temporary / f"{number}.tar", samples[start : start + SAMPLES], edge)
            for number, start in enumerate(range(0, len(samples), SAMPLES))
        ]
        for part in map_processes(partial(_write_shard, folder), jobs, workers if len(jobs) > 1 else 0):
            parts.append(part)
            advance("images", part.samples + len(part.faults), len(samples))
        faults = [fault for part in parts for fault in part.faults]
        if len(faults) == len(samples):
            raise InputError(f"every image in {source} is broken (first: {faults[0]}): replace the files")
        write_text(temporary / "nshards.txt", f"{len(jobs)}\n")
    written, texts = sum(part.samples for part in parts), sum(part.captions for part in parts)
    return ShardCounts(len(jobs), written, texts, missing + uncaptioned + faults)


def _find_files(source: Path, captions: CaptionsByImage) -> tuple[dict[str, Path], list[Fault]]:
    """Find each image's file: at its path, else the only one whose path ends like the name (in upper or lower case),
    unless another name has that path. Return the files by name, and the faults of the other names."""
    exact: dict[str, list[Path]] = {}
    by_end: dict[str, list[Path]] = {}
    for path in image_files(source, follow_links=True):
        relative = _normal(path.relative_to(source).as_posix())
        for name in (relative, os.path.splitext(relative)[0]):
            exact.setdefault(name, []).append(path)
            for end in _ends(name):
                by_end.setdefault(end, []).append(path)
    wanted = {name: _normal(name) for name in captions}
    for folder in (source.absolute(), source.resolve()):
        wanted = {name: path.removeprefix(f"{_normal(str(folder))}/") for name, path in wanted.items()}
    found = {name: exact.get(path, []) for name, path in wanted.items()}
    taken = {path for paths in found.values() for path in paths}
    for name in [name for name, paths in found.items() if not paths]:
        candidates = next(filter(None, map(by_end.get, _ends(wanted[name]))), [])
        found[name] = [path for path in candidates if path not in taken]
    counts = Counter(path for paths in found.values() for path in paths if path not in taken)
    matches, faults = {}, []
    for name, paths in found.items():
        if len(paths) == 1 and counts[paths[0]] <= 1:
            matches[name] = paths[0]
            continue
        names = " or ".join(str(path.relative_to(source)) for path in paths)
        several = f"may be {names}: give its whole path in the captions" if len(paths) > 1 else ""
        faults.append(Fault(name, several or f"is not in {source}"))
    return matches, faults


def _ends(name: str) -> list[str]:
    """Return the path `a/b/c` and its ends `b/c` and `c`, in lower case."""
    parts = name.casefold().split("/")
    return ["/".join(parts[start:]) for start in range(len(parts))]


def _normal(name: str) -> str:
    """Return a path in one way of writing it: with forward slashes, without `./`, in the composed form of Unicode."""
    return posixpath.normpath(unicodedata.normalize("NFC", name).replace("\\", "/"))


def _write_shard(folder: Path, job: ShardJob) -> ShardCounts:
    """Write one shard of `folder`, which errors name. May run in another process."""
    target, samples, edge = job
    count, captions, faults = 0, 0, []
    with explain_disk_errors(folder), tarfile.open(target, "w") as tar:
        for key, path, texts in samples:
            try:
                extension, content = _image(path, edge)
            except (InputError, OSError) as error:
                faults.append(sample_fault(str(path), error))
                continue
            add_member(tar, f"{key}.{extension}", content)
            add_member(tar, f"{key}.txt", "\n".join(texts).encode("utf-8", "replace"))
            count += 1
            captions += len(texts)
    return ShardCounts(1, count, captions, faults)


def _image(path: Path, edge: int | None) -> tuple[str, bytes]:
    """Return extension and content of an image for a shard. The image is always decoded, to check that it is whole."""
    image = read_image(path)
    extension = path.suffix[1:].lower()
    scale = edge / min(image.size) if edge else 1.0
    if scale >= 1 and extension in IMAGE:
        return extension, path.read_bytes()
    if scale < 1:
        width, height = (max(1, round(length * scale)) for length in image.size)
        image = image.resize((width, height), Image.Resampling.LANCZOS)
    return "jpg", encode(image, "JPEG", quality=_QUALITY)

"""The files of the built-in set: shards, minimal pairs, question files; each whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffclip.data.published_sets import CHOICE_IMAGES, PAIR_IMAGES, PATTERNS
from diffclip.files import write_atomically
from diffclip.scenes.pairs import minimal_pair
from diffclip.scenes.questions import NEGATIVES, image_name, question_indices, question_scene, questions
from diffclip.scenes.scene import Scene, Style, draw_scene
from diffclip.scenes.vocabulary import COLORS, COUNTS, SHAPES

Kind = Literal["captions", "shapes", "colours", "counts", "segmentation"]

QUESTION_IMAGES = "images"
_KEYS = {"color": "colour", "center": "centre"}  # names in files, which stay as they are


def jpeg(image: NDArray[np.uint8]) -> bytes:
    """Encode at quality 95 with full color resolution: halved chroma would smear small objects."""
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "JPEG", quality=95, subsampling=0)
    return buffer.getvalue()


def _png(mask: NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(mask).save(buffer, "PNG")
    return buffer.getvalue()


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
    target: Path,
    kind: Kind,
    split: str,
    style: Style,
    size: int,
    seed: int,
    distractors: int,
    indices: Iterable[int],
) -> None:
    """Write a tar of captioned scenes, of single objects labeled with their shape (index modulo shapes) or color, of
    scenes labeled with the number of their objects (index modulo COUNTS), or of scenes with the shape of each pixel.

    "shapes" and "colours" hold the same images with other labels, and so do "captions" and "segmentation".

    Raises:
        InputError: no space or permission.
    """
    single = kind in ("shapes", "colours")
    with write_atomically(target) as temporary, tarfile.open(temporary, "w") as tar:
        for index in indices:
            number, shape = COUNTS[index % len(COUNTS)], SHAPES[index % len(SHAPES)]
            scene = draw_scene(
                index,
                split=split,
                seed=seed,
                size=size,
                style=style,
                objects=1 if single else number if kind == "counts" else None,
                shape=shape if single else None,
                distractors=distractors,
            )
            members = {"jpg": jpeg(scene.image), "mask.png": _png(scene.index_mask)}
            if kind == "captions":
                members["json"] = json.dumps(_attributes(scene)).encode()
            elif kind == "segmentation":
                shapes = [0, *(SHAPES.index(thing.shape) + 1 for thing in scene.objects)]
                del members["mask.png"]
                members["seg.png"] = _png(np.array(shapes, np.uint8)[scene.index_mask])
            elif kind == "shapes":
                members["cls"] = str(SHAPES.index(shape)).encode()
            elif kind == "colours":
                members["cls"] = str(list(COLORS).index(scene.objects[0].color)).encode()
            else:
                members["cls"] = str(COUNTS.index(number)).encode()
            if "cls" not in members:
                members["txt"] = "\n".join(scene.captions).encode()
            for extension in sorted(members):
                # as webdataset's writer makes it; no time, so that equal settings give equal bytes
                member = tarfile.TarInfo(f"s{index:07d}.{extension}")
                member.size, member.mode = len(members[extension]), 0o444
                member.uname = member.gname = "bigdata"
                tar.addfile(member, io.BytesIO(members[extension]))


def _pair_items(pairs: int, size: int, seed: int) -> Iterator[tuple[str, NDArray[np.uint8], str, str]]:
    """Yield the images of so many pairs of each pattern: pattern, image, its statement, and that of the other image."""
    for pattern in PATTERNS:
        for index in range(pairs):
            pair = minimal_pair(pattern, index, seed, size)
            for image, own, other in zip(pair.images, pair.statements, pair.statements[::-1], strict=True):
                yield pattern, image, own, other


def write_pairs(target: Path, pairs: int, size: int, seed: int) -> None:
    """Write a folder as the published MMVP_VLM: images by pattern and number, and `Questions.csv`.

    Two consecutive rows and images are a pair.

    Raises:
        InputError: no space or permission.
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

    Raises:
        InputError: no space or permission.
    """
    with write_atomically(target) as temporary:
        (temporary / CHOICE_IMAGES).mkdir(parents=True)
        (temporary / "dataset_type.txt").write_text("sugarcrepe\n", encoding="utf-8")
        files: dict[str, dict[int, dict[str, str]]] = {}
        for pattern, image, own, other in _pair_items(pairs, size, seed):
            name = pattern.lower().replace(" ", "_")
            items = files.setdefault(name, {})
            file = f"{name}_{len(items)}.jpg"
            (temporary / CHOICE_IMAGES / file).write_bytes(jpeg(image))
            items[len(items)] = {"filename": file, "caption": own, "negative_caption": other}
        for name, items in files.items():
            (temporary / f"{name}.json").write_text(json.dumps(items, indent=1), encoding="utf-8")


def write_questions(target: Path, images: int, size: int, seed: int, topic: str = "kinds") -> None:
    """Write a folder with POPE's three question files (JSON lines) and the images that they ask about.

    Raises:
        InputError: no space or permission.
    """
    with write_atomically(target) as temporary:
        (temporary / QUESTION_IMAGES).mkdir(parents=True)
        for index in question_indices(images, seed):
            scene = question_scene(index, seed, size)
            (temporary / QUESTION_IMAGES / image_name(index)).write_bytes(jpeg(scene.image))
        for negatives in NEGATIVES:
            lines = [json.dumps(vars(one)) + "\n" for one in questions(images, negatives, seed, topic)]
            (temporary / f"coco_pope_{negatives}.json").write_text("".join(lines), encoding="utf-8")

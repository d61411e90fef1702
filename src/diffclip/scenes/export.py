"""The files of the built-in set: shards, minimal pairs, question files; each whole or not at all."""

from __future__ import annotations

import csv
import io
import json
import tarfile
from collections.abc import Iterable
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
    with write_atomically(target) as temporary, tarfile.open(temporary, "w") as tar:
        for index in indices:
            shape = SHAPES[index % len(SHAPES)] if kind in ("shapes", "colours") else None
            number = COUNTS[index % len(COUNTS)]
            scene = draw_scene(
                index,
                split=split,
                seed=seed,
                size=size,
                style=style,
                objects={"captions": None, "segmentation": None, "counts": number}.get(kind, 1),
                shape=shape,
                distractors=distractors,
            )
            members = {"jpg": jpeg(scene.image)}
            if kind == "segmentation":
                shapes = [0, *(SHAPES.index(thing.shape) + 1 for thing in scene.objects)]
                members["seg.png"] = _png(np.array(shapes, np.uint8)[scene.index_mask])
            else:
                members["mask.png"] = _png(scene.index_mask)
            if kind == "captions":
                members["json"] = json.dumps(_attributes(scene)).encode()
            if kind in ("captions", "segmentation"):
                members["txt"] = "\n".join(scene.captions).encode()
            elif kind == "shapes":
                members["cls"] = str(index % len(SHAPES)).encode()
            elif kind == "counts":
                members["cls"] = str(COUNTS.index(number)).encode()
            elif kind == "colours":
                members["cls"] = str(list(COLORS).index(scene.objects[0].color)).encode()
            for name in sorted(members):
                _add(tar, f"s{index:07d}.{name}", members[name])


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a member as webdataset's writer makes it; no time, so that equal settings give equal bytes."""
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o444, 0
    member.uname = member.gname = "bigdata"
    tar.addfile(member, io.BytesIO(content))


def write_pairs(target: Path, pairs: int, size: int, seed: int) -> None:
    """Write a folder as the published MMVP_VLM: images by pattern and number, and `Questions.csv`.

    Two consecutive rows and images are a pair.

    Raises:
        InputError: no space or permission.
    """
    with write_atomically(target) as temporary:
        rows: list[tuple[int, str, str]] = []
        for pattern in PATTERNS:
            folder = temporary / PAIR_IMAGES / pattern
            folder.mkdir(parents=True)
            for index in range(pairs):
                pair = minimal_pair(pattern, index, seed, size)
                for image, statement in zip(pair.images, pair.statements, strict=True):
                    rows.append((len(rows) + 1, pattern, statement))
                    (folder / f"{len(rows)}.jpg").write_bytes(jpeg(image))
        with (temporary / "Questions.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("Question ID", "Type", "Statement"), *rows])


def write_choices(target: Path, pairs: int, size: int, seed: int) -> None:
    """Write the pairs of `write_pairs` in SugarCrepe's layout: a JSON file a pattern and the images that it names.

    The negative caption of an image is the statement about the other image of its pair.

    Raises:
        InputError: no space or permission.
    """
    with write_atomically(target) as temporary:
        (temporary / CHOICE_IMAGES).mkdir(parents=True)
        (temporary / "dataset_type.txt").write_text("sugarcrepe\n", encoding="utf-8")
        for pattern in PATTERNS:
            name = pattern.lower().replace(" ", "_")
            items: dict[int, dict[str, str]] = {}
            for index in range(pairs):
                pair = minimal_pair(pattern, index, seed, size)
                for image, own, other in zip(
                    pair.images, pair.statements, pair.statements[::-1], strict=True
                ):
                    file = f"{name}_{len(items)}.jpg"
                    (temporary / CHOICE_IMAGES / file).write_bytes(jpeg(image))
                    items[len(items)] = {"filename": file, "caption": own, "negative_caption": other}
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

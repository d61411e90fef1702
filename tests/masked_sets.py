"""Small sets of images, with masks or with classes, in clip_benchmark's layout."""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from made_sets import encoded, noise, tar_of
from PIL import Image


def png(values: np.ndarray, mode: str | None = None) -> bytes:
    """Encode an array as a PNG; `mode` converts it first."""
    return encoded(Image.fromarray(values).convert(mode) if mode else values)


def box_mask(left: int, top: int, right: int, bottom: int, width: int = 32, height: int = 32) -> np.ndarray:
    mask = np.zeros((height, width), np.uint8)
    mask[top:bottom, left:right] = 255
    return mask


def write_masked(
    folder: Path,
    samples: Iterable[Mapping[str, bytes | str]],
    files: Mapping[str, str] | None = None,
    split: str = "test",
) -> Path:
    """Write a set with one shard in `split`; a sample maps extensions to contents."""
    members = (
        (f"s{number:07d}.{extension}", content.encode() if isinstance(content, str) else content)
        for number, sample in enumerate(samples)
        for extension, content in sample.items()
    )
    tar_of(folder / split / "0.tar", members)
    (folder / split / "nshards.txt").write_text("1")
    for name, text in (files or {}).items():
        (folder / name).write_text(text)
    return folder


def animals(count: int = 6) -> list[dict[str, Any]]:
    """Create noise images, each with a text and with a box as its object, at another place in each."""
    names = ("cat", "dog", "owl")
    return [
        {
            "png": png(noise(i)),
            "mask.png": png(box_mask(3 * i % 16, 2 * i % 12, 3 * i % 16 + 12, 2 * i % 12 + 14)),
            "txt": names[i % 3],
        }
        for i in range(count)
    ]


def two_things(number: int) -> dict[str, Any]:
    """Create a noise image with a red star and a blue ring."""
    mask = box_mask(0, 0, 9, 20) // 255
    mask[20:30, 12:28] = 2
    things = {"objects": [{"colour": "red", "shape": "star"}, {"colour": "blue", "shape": "ring"}]}
    return {"png": png(noise(number)), "mask.png": png(mask), "json": json.dumps(things)}


def write_class_set(folder: Path, splits: Mapping[str, Sequence[int]], classes: int) -> Path:
    """Write a set with one shard per split and one image per label; the color of an image shows its class."""
    files = {"classnames.txt": "\n".join(f"colour {i}" for i in range(classes))}
    for number, (split, labels) in enumerate(splits.items()):
        samples = (
            {"png": _colored(label, 1000 * number + index), "cls": str(label)}
            for index, label in enumerate(labels)
        )
        write_masked(folder, samples, files, split)
    return folder


def _colored(label: int, seed: int) -> bytes:
    base = np.random.default_rng(10_000 + label).integers(30, 226, 3)
    grain = np.random.default_rng(seed).integers(-25, 26, (16, 16, 3))
    return png((base + grain).astype(np.uint8))

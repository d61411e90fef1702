"""Small sets of images with masks in clip_benchmark's layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from made_sets import encoded, tar_of
from PIL import Image


def png(values: np.ndarray, mode: str | None = None) -> bytes:
    """Encode an array as a PNG; `mode` converts it first."""
    return encoded(Image.fromarray(values).convert(mode) if mode else values)


def noise(number: int, width: int = 32, height: int = 32) -> np.ndarray:
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


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

"""Classification sets of plain colored images in clip_benchmark's layout, with as many splits as a test asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from made_sets import encoded, tar_of


def write_class_set(folder: Path, splits: Mapping[str, Sequence[int]], classes: int) -> Path:
    """Write a set with one shard per split and one image per label; the color of an image shows its class."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classnames.txt").write_text("\n".join(f"colour {i}" for i in range(classes)))
    for number, (split, labels) in enumerate(splits.items()):
        (folder / split).mkdir()
        (folder / split / "nshards.txt").write_text("1")
        members = []
        for index, label in enumerate(labels):
            members += [
                (f"s{index:07d}.png", _image(label, 1000 * number + index)),
                (f"s{index:07d}.cls", str(label).encode()),
            ]
        tar_of(folder / split / "0.tar", members)
    return folder


def _image(label: int, seed: int) -> bytes:
    base = np.random.default_rng(10_000 + label).integers(30, 226, 3)
    noise = np.random.default_rng(seed).integers(-25, 26, (16, 16, 3))
    return encoded((base + noise).astype(np.uint8))

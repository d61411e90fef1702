"""Classification sets of plain coloured pictures in clip_benchmark's layout, with as many splits as a test asks for."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image


def write_class_set(folder: Path, splits: Mapping[str, Sequence[int]], classes: int) -> Path:
    """A set with one shard a split, a picture for each label in it; a picture's colour tells its class."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "classnames.txt").write_text("\n".join(f"colour {i}" for i in range(classes)))
    for number, (split, labels) in enumerate(splits.items()):
        (folder / split).mkdir()
        (folder / split / "nshards.txt").write_text("1")
        with tarfile.open(folder / split / "0.tar", "w") as tar:
            for index, label in enumerate(labels):
                _add(tar, f"s{index:07d}.png", _picture(label, 1000 * number + index))
                _add(tar, f"s{index:07d}.cls", str(label).encode())
    return folder


def _picture(label: int, seed: int) -> bytes:
    base = np.random.default_rng(10_000 + label).integers(30, 226, 3)
    noise = np.random.default_rng(seed).integers(-25, 26, (16, 16, 3))
    buffer = io.BytesIO()
    Image.fromarray((base + noise).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    tar.addfile(info, io.BytesIO(content))

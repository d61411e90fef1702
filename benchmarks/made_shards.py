"""Shards of pictures about as large and as hard to decode as photographs scaled for training."""

from __future__ import annotations

import io
import tarfile
from itertools import count
from pathlib import Path

import numpy as np
from PIL import Image

from diffclip.scenes.scene import draw_scene

EDGE, LONG_EDGE, QUALITY = 256, 341, 90


def make_shards(folder: Path, samples: int, shards: int, different: int = 512, seed: int = 0) -> None:
    """Write `shards` tars with `samples` samples in all, a picture and one caption each.

    Pictures have a shorter edge of 256 and take 25 KB. There are so many `different` ones, since drawing takes longer
    than all that is measured; each sample has its own place and caption.
    """
    different = min(different, samples)
    drawn = [_picture(index, seed) for index in range(different)]
    numbers = count()
    for shard in range(shards):
        with tarfile.open(folder / f"{shard:05d}.tar", "w") as tar:
            for _ in range(samples // shards + (shard < samples % shards)):
                number = next(numbers)
                picture, captions = drawn[number % different]
                _add(tar, f"{number:08d}.jpg", picture)
                _add(tar, f"{number:08d}.txt", captions[number // different % len(captions)].encode())


def _picture(index: int, seed: int) -> tuple[bytes, tuple[str, ...]]:
    """A scene, lying or upright, with the grain of a photograph."""
    scene = draw_scene(index, seed=seed, size=LONG_EDGE)
    part = scene.image[:EDGE] if index % 2 else scene.image[:, :EDGE]
    rng = np.random.default_rng((seed, index))
    grain = rng.normal(0, 4, part.shape[:2])[..., None] + rng.normal(0, 2, part.shape)
    buffer = io.BytesIO()
    Image.fromarray(np.clip(part + grain, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=QUALITY)
    return buffer.getvalue(), scene.captions


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))

"""A shard whose images are partly broken: zeros in place of their bytes, the tar whole."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from diffclip.data.shards import Shards


def zero_images(shard: Path, target: Path, broken: Iterable[int]) -> Path:
    """`shard` written to `target`, with zeros for the images of the samples `broken`."""
    data, samples = bytearray(shard.read_bytes()), Shards([shard])
    for number in broken:
        image = samples.sample(number, ("jpg",))["jpg"]
        start = data.index(image)
        data[start : start + len(image)] = bytes(len(image))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bytes(data))
    return target

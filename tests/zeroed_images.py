"""Write a shard in which some images are broken: zeros replace their bytes, and the tar stays whole."""

from collections.abc import Iterable
from pathlib import Path

from made_sets import EVERY

from diffclip.data.tar_set import TarSet


def zero_images(shard: Path, target: Path, broken: Iterable[int]) -> Path:
    """Copy `shard` to `target`, with zeros in place of the images of the samples `broken`."""
    data, samples = bytearray(shard.read_bytes()), TarSet(shard, EVERY)
    for number in broken:
        image = samples[number].read("jpg")["jpg"]
        start = data.index(image)
        data[start : start + len(image)] = bytes(len(image))
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(bytes(data))
    return target

"""Fixtures that write shards: real tars of real images."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from made_sets import encoded, tar_of
from masked_sets import noise


@pytest.fixture
def image_bytes() -> Callable[..., bytes]:
    """Encode a noise image; each number gives another image."""

    return lambda number=0, kind="JPEG": encoded(noise(number, 12, 10), kind)


@pytest.fixture
def write_shard(image_bytes: Callable[..., bytes]) -> Callable[..., Path]:
    """Write a shard with `count` samples from number `start` on, each an image with two captions.

    `changes` replaces members of a sample, by number and extension; None removes a member.
    """

    def write(
        path: Path,
        count: int,
        start: int = 0,
        changes: Mapping[int, Mapping[str, bytes | None]] | None = None,
    ) -> Path:
        members = []
        for number in range(start, start + count):
            captions = f"first {number}\nsecond {number}\n".encode()
            sample = {"jpg": image_bytes(number), "txt": captions, **(changes or {}).get(number, {})}
            members += [(f"s{number:07d}.{ext}", data) for ext, data in sample.items() if data is not None]
        return tar_of(path, members)

    return write

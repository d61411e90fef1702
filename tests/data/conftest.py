"""Shards made by the tests: real tars of real images."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
from made_sets import encoded, tar_of


@pytest.fixture
def image_bytes() -> Callable[..., bytes]:
    """A file of noise, another for each number."""

    def encode(number: int = 0, kind: str = "JPEG") -> bytes:
        return encoded(np.random.default_rng(number).integers(0, 256, (10, 12, 3), dtype=np.uint8), kind)

    return encode


@pytest.fixture
def write_shard(image_bytes: Callable[..., bytes]) -> Callable[..., Path]:
    """A shard of the samples `start` to `start + count`, each an image with two captions.

    `changes` replaces members of a sample by number and extension; None removes one.
    """

    def write(
        path: Path,
        count: int,
        start: int = 0,
        changes: Mapping[int, Mapping[str, bytes | None]] | None = None,
    ) -> Path:
        members = []
        for number in range(start, start + count):
            sample: dict[str, bytes | None] = {
                "jpg": image_bytes(number),
                "txt": f"first {number}\nsecond {number}\n".encode(),
                **(changes or {}).get(number, {}),
            }
            members += [(f"s{number:07d}.{ext}", data) for ext, data in sample.items() if data is not None]
        return tar_of(path, members)

    return write

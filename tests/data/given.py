"""Shards and error messages for several tests of data."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from made_sets import encoded, noise, tar_of

from diffclip.data.open_set import open_set
from diffclip.errors import InputError


def image_bytes(number: int) -> bytes:
    """Encode a noise image; each number gives another image."""
    return encoded(noise(number, 12, 10), "JPEG")


def write_shard(
    path: Path, count: int, start: int = 0, changes: Mapping[int, Mapping[str, bytes | None]] | None = None
) -> Path:
    """Write a shard with `count` samples from number `start` on, each an image with two captions.

    `changes` replaces members of a sample, by number and extension; None removes a member.
    """
    members = []
    for number in range(start, start + count):
        captions = f"first {number}\nsecond {number}\n".encode()
        sample = {"jpg": image_bytes(number), "txt": captions, **(changes or {}).get(number, {})}
        members += [(f"s{number:07d}.{ext}", data) for ext, data in sample.items() if data is not None]
    return tar_of(path, members)


def refusal(source: str | Path, split: str, root: Path | None = None) -> str:
    """Return the one-line error that opening the set raises."""
    with pytest.raises(InputError) as raised:
        open_set(source, split, root)
    assert "\n" not in str(raised.value)
    return str(raised.value)

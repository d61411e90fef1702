"""Write images, shards and their parts for tests."""

import io
import struct
import tarfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from diffclip.data.members import Members


def tar_of(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """Write files by name and content into a tar."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


_ENDINGS = ("jpg", "txt", "json", "cls", "mask.png", "seg.png")
EVERY = Members(tuple((ending, (ending,)) for ending in _ENDINGS), (("member", _ENDINGS),), "give shards")
"""The members of samples of any kind."""


def write_shard_of(path: Path, samples: Iterable[tuple[object, Mapping[str, bytes]]]) -> Path:
    """Write samples, each a key with contents by extension, into a shard."""
    return tar_of(
        path, ((f"{key}.{ending}", data) for key, members in samples for ending, data in members.items())
    )


def encoded(image: Image.Image | np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    """Encode an image, or an array of its pixels, as a file."""
    buffer = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(buffer, kind, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_by_hand(width: int, height: int, rows: bytes, color: int = 0, extra: bytes = b"") -> bytes:
    """Build a PNG with the given header, whatever its rows hold; `extra` are chunks before the rows."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, color, 0, 0, 0))
    rest = png_chunk(b"IDAT", zlib.compress(rows)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + header + extra + rest


def photograph(width: int, height: int, seed: int) -> Image.Image:
    """Create an image of smooth colors with grain."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height))
    grain = rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8))


def noise(number: int, width: int = 32, height: int = 32) -> np.ndarray:
    """Create the pixels of a noise image; each number gives another image."""
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), dtype=np.uint8)


def write_image(path: Path, number: int = 0, size: tuple[int, int] = (12, 10)) -> Path:
    """Write a noise image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise(number, *size)).save(path)
    return path

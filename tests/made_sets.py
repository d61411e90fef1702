"""Write small versions of published sets in the layout of torchvision or the publisher, with images of their own."""

import hashlib
import io
import json
import pickle
import struct
import tarfile
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from diffclip.data.members import Members

CIFAR_NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]


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


def png_by_hand(
    width: int, height: int, rows: bytes, depth: int = 8, color: int = 0, extra: bytes = b""
) -> bytes:
    """Build a PNG with the given header, whatever its rows hold; `extra` are chunks before the rows."""
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
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


def write_cifar10(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write ten test and fifty training images, and give torchvision their checksums."""
    folder = place / "cifar-10-batches-py"
    folder.mkdir(parents=True)

    def write(name: str, content: object) -> str:
        data = pickle.dumps(content)
        (folder / name).write_bytes(data)
        return hashlib.md5(data).hexdigest()

    def batch(name: str, seed: int) -> list[str]:
        values = np.random.default_rng(seed).integers(0, 256, (10, 3072), dtype=np.uint8)
        return [name, write(name, {"data": values, "labels": [(3 * i + seed) % 10 for i in range(10)]})]

    train = [batch(f"data_batch_{i}", i) for i in range(1, 6)]
    monkeypatch.setattr(datasets.CIFAR10, "train_list", train)
    monkeypatch.setattr(datasets.CIFAR10, "test_list", [batch("test_batch", 6)])
    meta = {"filename": "batches.meta", "key": "label_names"}
    meta["md5"] = write("batches.meta", {"label_names": CIFAR_NAMES})
    monkeypatch.setattr(datasets.CIFAR10, "meta", meta)
    return place


def pack(folder: Path, archive: Path, inside: str) -> str:
    """Pack `folder` into `archive` under the name `inside`; return the archive's checksum."""
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:gz" if archive.name.endswith("gz") else "w") as tar:
        tar.add(folder, inside)
    return hashlib.md5(archive.read_bytes()).hexdigest()


def write_dtd(place: Path) -> None:
    for number, split in enumerate(("train", "val", "test")):
        lines = [f"{name}/{name}_{split}.jpg" for name in ("striped", "banded")]
        for index, line in enumerate(lines):
            write_image(place / "dtd/dtd/images" / line, 10 * number + index)
        labels = place / "dtd/dtd/labels" / f"{split}1.txt"
        labels.parent.mkdir(parents=True, exist_ok=True)
        labels.write_text("\n".join(lines) + "\n")


def write_pets(place: Path) -> None:
    folder = place / "oxford-iiit-pet"
    (folder / "annotations").mkdir(parents=True)
    for split, count in (("trainval", 3), ("test", 2)):
        names = [(f"{name}_{split}{i}", label) for label, name in PETS for i in range(count)]
        (folder / "annotations" / f"{split}.txt").write_text(
            "".join(f"{name} {label} 1 1\n" for name, label in names)
        )
        for index, (name, _) in enumerate(names):
            write_image(folder / "images" / f"{name}.jpg", index)


PETS = ((1, "Abyssinian"), (2, "american_bulldog"))


def write_food101(place: Path) -> None:
    for split in ("train", "test"):
        meta = {name: [f"{name}/{split}{i}" for i in range(2)] for name in ("apple_pie", "baby_back_ribs")}
        for index, file in enumerate(file for files in meta.values() for file in files):
            write_image(place / "food-101/images" / f"{file}.jpg", index)
        (place / "food-101/meta").mkdir(exist_ok=True)
        (place / "food-101/meta" / f"{split}.json").write_text(json.dumps(meta))


def write_aircraft(place: Path) -> None:
    data = place / "fgvc-aircraft-2013b" / "data"
    data.mkdir(parents=True)
    (data / "variants.txt").write_text("707-320\nA300B4\n")
    for split in ("train", "val", "test"):
        (data / f"images_variant_{split}.txt").write_text(f"{split}0 707-320\n{split}1 A300B4\n")
        for i in range(2):
            write_image(data / "images" / f"{split}{i}.jpg", i)


def write_sun397(place: Path, counts: Mapping[str, int]) -> None:
    """Write `counts` images of each scene."""
    for name, count in counts.items():
        for i in range(count):
            write_image(place / "SUN397" / name[0] / name / f"sun_{i:04d}.jpg", i, (4, 4))
    (place / "SUN397" / "ClassName.txt").write_text("".join(f"/{name[0]}/{name}\n" for name in counts))


def write_caltech101(place: Path, counts: Sequence[int]) -> None:
    """Write a category for each of `counts`, with that many images."""
    for category, count in enumerate(counts):
        folder = place / "caltech101/101_ObjectCategories" / f"category{category:03d}"
        for i in range(count):
            write_image(folder / f"image_{i + 1:04d}.jpg", i, (4, 4))


MAKERS: dict[str, Callable[[Path], None]] = {
    "dtd": write_dtd,
    "pets": write_pets,
    "food101": write_food101,
    "fgvc_aircraft": write_aircraft,
}

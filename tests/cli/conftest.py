"""Small sets, images and a saved model for the commands that use a model."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_sets import encoded, tar_of
from PIL import Image

COLORS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a red, a green and a blue image."""
    folder = tmp_path_factory.mktemp("images")
    for name, color in COLORS.items():
        Image.new("RGB", (20, 24), color).save(folder / f"{name}.png")
    return folder


def write_set(folder: Path, members: list[tuple[str, bytes]], files: dict[str, str]) -> Path:
    """A set in clip_benchmark's layout with one shard in the split `test`."""
    tar_of(folder / "test" / "0.tar", members)
    (folder / "test" / "nshards.txt").write_text("1")
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def colored_png(index: int) -> bytes:
    color = tuple(COLORS.values())[index % 3]
    return encoded(Image.new("RGB", (20, 20), tuple(min(255, value + index) for value in color)))


@pytest.fixture(scope="session")
def class_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of three classes, and one that is broken."""
    members = []
    for index in range(12):
        key = f"s{index:07d}"
        members += [(f"{key}.png", colored_png(index)), (f"{key}.cls", str(index % 3).encode())]
    members += [("s0000012.png", b"not an image"), ("s0000012.cls", b"0")]
    templates = "a photo of {c}.\n{c}"
    files = {"classnames.txt": "\n".join(COLORS), "zeroshot_classification_templates.txt": templates}
    return write_set(tmp_path_factory.mktemp("sets") / "colours", members, files)


@pytest.fixture(scope="session")
def caption_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven images with one to three captions each."""
    members = []
    for index in range(11):
        captions = "\n".join(f"{'very ' * line}plain picture {index}" for line in range(1 + index % 3))
        members += [(f"s{index:07d}.png", colored_png(index)), (f"s{index:07d}.txt", captions.encode())]
    return write_set(tmp_path_factory.mktemp("sets") / "plain", members, {"dataset_type.txt": "retrieval"})

"""Small sets and images for tests of the commands that use a model."""

from pathlib import Path

import pytest
from made_sets import encoded
from masked_sets import write_masked
from PIL import Image

COLORS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220)}


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a red, a green and a blue image."""
    folder = tmp_path_factory.mktemp("images")
    for name, color in COLORS.items():
        Image.new("RGB", (20, 24), color).save(folder / f"{name}.png")
    return folder


def colored_png(index: int) -> bytes:
    color = tuple(COLORS.values())[index % 3]
    return encoded(Image.new("RGB", (20, 20), tuple(min(255, value + index) for value in color)))


@pytest.fixture(scope="session")
def class_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images of three classes, and one broken image."""
    samples = [{"png": colored_png(index), "cls": str(index % 3)} for index in range(12)]
    samples.append({"png": b"not an image", "cls": "0"})
    files = {"classnames.txt": "\n".join(COLORS)}
    files["zeroshot_classification_templates.txt"] = "a photo of {c}.\n{c}"
    return write_masked(tmp_path_factory.mktemp("sets") / "colours", samples, files)


@pytest.fixture(scope="session")
def caption_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eleven images with one to three captions each."""
    samples = []
    for index in range(11):
        captions = "\n".join(f"{'very ' * line}plain picture {index}" for line in range(1 + index % 3))
        samples.append({"png": colored_png(index), "txt": captions})
    folder = tmp_path_factory.mktemp("sets") / "plain"
    return write_masked(folder, samples, {"dataset_type.txt": "retrieval"})

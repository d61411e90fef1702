"""Small models, a folder of images, and the page of both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from web_page_process import Page, serving

from diffclip import CLIP, save_weights
from diffclip.config import variant_config
from diffclip.sources.load import Loaded, load_with_origin

COLORS = {"red": (220, 20, 20), "green": (20, 200, 20), "blue": (20, 20, 220), "grey": (128, 128, 128)}


SIZES = {
    "embed_dim": 16,
    "vision": {"image_size": 32, "patch_size": 8, "width": 32, "layers": 2, "heads": 2},
    "text": {"context_length": 16, "width": 32, "layers": 2, "heads": 2},
}


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A plain and a differential model."""
    folders = [tmp_path_factory.mktemp("explored") / name for name in ("Plain", "Differential")]
    for seed, (name, folder) in enumerate(zip(("CLIP", "DiffCLIP"), folders, strict=True)):
        save_weights(CLIP(variant_config(name, SIZES), seed=seed), folder)
    return folders


@pytest.fixture(scope="session")
def plain(model_folders: list[Path]) -> Loaded:
    return load_with_origin(str(model_folders[0]))


@pytest.fixture(scope="session")
def differential(model_folders: list[Path]) -> Loaded:
    return load_with_origin(str(model_folders[1]))


@pytest.fixture(scope="session")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of images with a subfolder and a broken file, next to an image outside the folder."""
    folder = tmp_path_factory.mktemp("around") / "photos"
    (folder / "below").mkdir(parents=True)
    for index, (name, color) in enumerate(COLORS.items()):
        image = Image.new("RGB", (60, 48), color)
        image.paste((255, 255, 255), (5 * index, 5, 5 * index + 20, 30))
        image.save(folder / ("below" if index == 3 else "") / f"{name}.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    Image.new("RGB", (20, 20)).save(folder.parent / "neighbour.png")
    return folder


@pytest.fixture(scope="session")
def page(model_folders: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    """The page of both models."""
    models = [part for folder in model_folders for part in ("--model", folder)]
    with serving(*models, cache=tmp_path_factory.mktemp("cache")) as client:
        yield client

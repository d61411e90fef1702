"""Small models, and the page of both."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from web_page_process import Page

from diffclip import CLIP, save_weights
from diffclip.config import variant_config
from diffclip.sources.load import Loaded, load_with_origin

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


@pytest.fixture(scope="module")
def address(plain: Loaded, differential: Loaded) -> Iterator[str]:
    """The page of both models, served by this process."""
    from diffclip.web.server import pick_port, serve_in_background

    models = [("x/Plain", plain), ("x/Differential", differential)]
    with serve_in_background(models, "127.0.0.1", pick_port("127.0.0.1", 0)) as url:
        yield url


@pytest.fixture
def page(address: str) -> Page:
    return Page(address)

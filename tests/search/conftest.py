"""Folders of small images, and a tiny model, for what searches them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffclip.model_source import Loaded, load_for_use


@pytest.fixture(scope="session")
def loaded(model_folder: Path) -> Loaded:
    return load_for_use(str(model_folder))


def _draw(file: Path, seed: int) -> Path:
    """An image of 16 coloured squares."""
    file.parent.mkdir(parents=True, exist_ok=True)
    colours = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8)
    Image.fromarray(colours).resize((16, 16), Image.Resampling.NEAREST).save(file)
    return file


@pytest.fixture
def draw() -> Callable[[Path, int], Path]:
    return _draw


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve images at three depths."""
    place = tmp_path / "my images"
    for number in range(12):
        _draw(place / ("", "more/", "more/ü ñ/")[number % 3] / f"{number:02d}.png", number)
    return place

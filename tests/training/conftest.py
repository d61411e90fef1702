"""A tiny recipe over scenes that the tests draw themselves."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_recipe import tiny_recipe

from diffclip.training.recipe import Recipe, parse_recipe


@pytest.fixture(scope="session")
def scenes(scenes: Path) -> Path:
    """The built-in captions."""
    return scenes / "captions"


@pytest.fixture(scope="session")
def fields(scenes: Path) -> dict[str, Any]:
    """The fields of a recipe: 3 epochs of 5 steps."""
    data = {"train": str(scenes / "train"), "val": str(scenes / "val")}
    return tiny_recipe(
        size=32, width=32, layers=2, heads=4, epochs=3, lr=1e-3, weight_decay=0.1, precision="fp32", data=data
    )


@pytest.fixture
def recipe(fields: dict[str, Any]) -> Recipe:
    return parse_recipe(fields, "test")


@pytest.fixture
def recipe_file(fields: dict[str, Any], tmp_path: Path) -> Path:
    file = tmp_path / "tiny.yaml"
    file.write_text(yaml.safe_dump(fields))
    return file

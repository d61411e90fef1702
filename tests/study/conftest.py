"""Made pictures that stand for the sets of the suite `brief`, and the file of a tiny study."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_study import RECIPE, STUDY

from diffclip.report.save import save_run
from diffclip.scenes import write_scenes
from diffclip.study.one import Place
from diffclip.study.recipe import Study, read_study


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scenes under the names of the sets of the suite `brief`."""
    folder = tmp_path_factory.mktemp("data")
    drawn = tmp_path_factory.mktemp("drawn") / "scenes"
    write_scenes(drawn, size=32, train=40, val=12, test=11, seed=0)
    for name, set_ in {"flickr8k": "captions", "cifar10": "shapes", "caltech101": "colours"}.items():
        (folder / name).symlink_to(drawn / set_)
    return folder


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Writes the study with changes of whole keys, and its recipe, in the folder that is the working folder then."""
    monkeypatch.chdir(tmp_path)

    def write(**changes: Any) -> Path:
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
        file = tmp_path / "tiny_study.yaml"
        file.write_text(yaml.safe_dump({**STUDY, **changes}))
        return file

    return write


@pytest.fixture
def study(study_file: Callable[..., Path]) -> Study:
    return read_study(study_file(sweep=None))


@pytest.fixture
def place(data: Path, tmp_path: Path) -> Place:
    return Place(data, tmp_path / "runs", tmp_path / "out", "cpu", 1, save_run)

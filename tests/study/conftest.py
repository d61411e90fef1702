"""Scenes in place of the sets of the suite `brief`, and the file of a tiny study."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import forked
import pytest
import yaml
from in_process import diffclip_command
from tiny_study import RECIPE, STUDY

from diffclip.study.job import Job, run_job


@pytest.fixture(scope="session")
def data(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scenes under the names of the sets of the suite `brief`."""
    folder = tmp_path_factory.mktemp("data")
    for name, set_ in {"flickr8k": "captions", "cifar10": "shapes", "caltech101": "colours"}.items():
        (folder / name).symlink_to(scenes / set_)
    return folder


@pytest.fixture
def study_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Change to `tmp_path`; return a function that writes the recipe and the study, with whole keys replaced."""
    monkeypatch.chdir(tmp_path)

    def write(**changes: Any) -> Path:
        (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(RECIPE))
        file = tmp_path / "tiny_study.yaml"
        file.write_text(yaml.safe_dump({**STUDY, **changes}))
        return file

    return write


@pytest.fixture
def forked_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fork the processes of the runs, which then need not import torch."""

    def start(job: Job, gpu: str) -> SimpleNamespace:
        process = forked.begin(job.beside("log"), run_job, str(job.beside("job.json")))
        return SimpleNamespace(poll=lambda: process.exitcode, terminate=process.terminate, kill=process.kill)

    monkeypatch.setattr("diffclip.study.executors._start_process", start)


@pytest.fixture
def diffclip_study(data: Path, tmp_path: Path) -> Callable[..., Any]:
    """Return a function that runs `diffclip study FILE …` on `data`, with runs and results in `tmp_path`."""

    def call(file: Path | str, *more: object) -> Any:
        folders = ("--data", data, "--runs", tmp_path / "runs", "--output", tmp_path / "out")
        return diffclip_command("study", file, *folders, *more)

    return call

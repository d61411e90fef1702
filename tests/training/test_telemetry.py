"""Telemetry where it cannot be written: one line, which closing does not replace by another."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from diffclip import InputError
from diffclip.training.telemetry import Telemetry


def record(step: int) -> dict[str, Any]:
    numbers = ("epoch", "samples", "loss", "accuracy", "samples_per_second", "data_wait")
    return {"step": step} | dict.fromkeys(numbers, 0.5) | {"lambda": {"visual": [0.8], "text": []}}


VALIDATION = {
    "step": 1,
    "epoch": 1,
    "image_retrieval_recall@5": 0.5,
    "text_retrieval_recall@5": 0.5,
    "score": 0.5,
}


@contextmanager
def files_no_larger_than(size: int) -> Iterator[None]:
    """Within the block, this process cannot write a file beyond `size` bytes."""
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """A run whose `metrics.jsonl` is a device that is always full."""
    if not Path("/dev/full").exists():
        pytest.skip("needs a device that is always full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    return tmp_path


def test_a_full_disk_is_one_line_of_ours(full: Path) -> None:
    with (
        pytest.raises(InputError, match=r"no space left on device while writing .*metrics\.jsonl: free"),
        Telemetry(full, "test", 5) as telemetry,
    ):
        telemetry.step(record(1))


def test_what_stopped_the_run_is_not_replaced(full: Path) -> None:
    class StoppedError(Exception):
        pass

    with pytest.raises(StoppedError), Telemetry(full, "test", 5) as telemetry:
        with pytest.raises(InputError):
            telemetry.step(record(1))
        raise StoppedError


def test_what_only_closing_finds_is_raised(full: Path) -> None:
    telemetry = Telemetry(full, "test", 5).__enter__()
    with pytest.raises(InputError):
        telemetry.step(record(1))
    with pytest.raises(InputError, match=r"metrics\.jsonl"):
        telemetry.__exit__(None, None, None)


def test_tensorboard_that_cannot_be_written(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/null")
    with (
        pytest.raises(InputError, match=r"cannot write .*tensorboard: File too large; choose another place"),
        files_no_larger_than(1000),
        Telemetry(tmp_path, "test", 10_000) as telemetry,
    ):
        for step in range(1, 10_000):
            telemetry.step(record(step))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("name", ["metrics.jsonl", "validation.jsonl"])
def test_a_folder_in_the_place_of_a_file(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(InputError, match=f"cannot write .*{name}: a file or folder of that name"):
        Telemetry(tmp_path, "test", 5)


def test_a_file_in_the_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "tensorboard").touch()
    with pytest.raises(InputError, match=r"cannot write .*tensorboard: a file or folder of that name"):
        Telemetry(tmp_path, "test", 5)


def test_a_resumed_run_has_each_step_once(tmp_path: Path) -> None:
    with Telemetry(tmp_path, "test", 5) as telemetry:
        for step in (1, 2, 3):
            telemetry.step(record(step))
        telemetry.validation(VALIDATION)
        telemetry.validation(VALIDATION | {"step": 3})
    with Telemetry(tmp_path, "test", 5, done=2) as telemetry:
        telemetry.step(record(3))
    for name, steps in (("metrics.jsonl", [1, 2, 3]), ("validation.jsonl", [1])):
        assert [json.loads(line)["step"] for line in (tmp_path / name).read_text().splitlines()] == steps

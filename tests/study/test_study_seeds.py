"""`benchmarks.seeds`: what is not whole is not condensed."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import seeds


def test_a_task_that_fails_leaves_nothing_condensed(
    study_file: Callable[..., Path],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    study_file()
    (tmp_path / "sets").mkdir()
    (tmp_path / "sets" / "flickr8k").symlink_to((data / "flickr8k").resolve())  # cifar10 is missing
    words = ["--recipe", "tiny.yaml", "--suite", "brief", "--models", "CLIP", "--seeds", "0"]
    words += ["--data", "sets", "--runs", "runs", "--output", "results", "--set", "epochs=1"]
    monkeypatch.setattr(sys, "argv", ["seeds", *words])
    with pytest.raises(SystemExit) as ended:
        seeds.main()
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert "CLIP-s0: retrieval on flickr8k" in told.out
    last = told.err.splitlines()[-1]
    assert last.startswith("seeds: zero-shot on cifar10 failed: ")
    assert last.endswith("; nothing is condensed")
    assert not (tmp_path / "results").exists()
    assert not (tmp_path / "runs" / "CLIP-s0" / "results.jsonl").exists()

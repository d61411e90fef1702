"""Weights & Biases without its server: what is kept, that a resumed run goes on in its run, and training does."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from diffclip import InputError
from diffclip.training.telemetry import Telemetry

RECORD = {"epoch": 1, "loss": 0.5, "accuracy": 0.5, "samples_per_second": 80.0, "data_wait": 0.1}
VALIDATION = {
    "step": 3,
    "epoch": 1,
    "image_retrieval_recall@5": 0.5,
    "text_retrieval_recall@5": 0.5,
    "score": 0.5,
}


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    module = pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "home" / "netrc"))
    yield module
    module.teardown()


@pytest.fixture
def offline(wandb: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("WANDB_MODE", "offline")
    return wandb


def train(run: Path, steps: range, then: Callable[[], object] = lambda: None, **options: Any) -> None:
    run.mkdir(exist_ok=True)
    with Telemetry(run, "test", 20, steps.start - 1, wandb="a-project", **options) as telemetry:
        for step in steps:
            telemetry.step(
                RECORD | {"step": step, "samples": 8 * step, "lambda": {"visual": [0.8], "text": []}}
            )
        then()
        telemetry.validation(VALIDATION | {"step": steps[-1]})


def told(run: Path) -> dict[str, bytes]:
    """What is kept for the server, by the name of the file, once its writer has ended."""
    sys.modules["wandb"].teardown()
    files = run.glob("wandb/offline-run-*/run-*.wandb")
    return {file.name: b"".join(path.read_bytes() for path in run.rglob(file.name)) for file in files}


def test_a_run_is_kept_with_its_recipe_and_the_names_that_tensorboard_has(offline, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    (run / "recipe.yaml").write_text("model: CLIP\ndata: {train: 'https://me:pa55@host/x.tar'}\n")
    train(run, range(1, 4), about={"command": "diffclip train it"})
    ((name, content),) = told(run).items()
    for text in ("a-project", "train/loss", "lambda/visual/0", "validation/score", "diffclip train it"):
        assert text.encode() in content
    assert b"https://***@host/x.tar" in content
    assert b"pa55" not in content
    assert name == f"run-{(run / 'wandb' / 'id').read_text().strip()}.wandb"
    assert "to be sent by wandb sync" in capsys.readouterr().err


def test_a_resumed_run_goes_on_in_the_same_run_and_a_new_one_does_not(offline, tmp_path):
    train(tmp_path / "run", range(1, 4))
    offline.teardown()
    train(tmp_path / "run", range(4, 6))
    assert len(told(tmp_path / "run")) == 1
    offline.teardown()
    train(tmp_path / "run", range(1, 3))
    assert len(told(tmp_path / "run")) == 2


def test_a_server_that_does_not_answer_stops_nothing(wandb, tmp_path, monkeypatch, capsys):
    # nothing listens there
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("WANDB_API_KEY", 40 * "a")
    monkeypatch.setenv("WANDB_INIT_TIMEOUT", "1")
    train(tmp_path / "run", range(1, 4))
    assert "Weights & Biases does not answer" in capsys.readouterr().err
    (content,) = told(tmp_path / "run").values()
    assert b"train/loss" in content
    assert len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()) == 3


@pytest.mark.skipif(not Path(f"/proc/self/task/{os.getpid()}/children").exists(), reason="needs /proc")
def test_a_helper_process_that_dies_stops_nothing(offline, tmp_path, capsys):
    run = tmp_path / "run"
    run.mkdir()
    with Telemetry(run, "test", 2000, wandb="a-project") as telemetry:
        for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            if b"wandb" in Path(f"/proc/{child}/cmdline").read_bytes():
                os.kill(int(child), signal.SIGKILL)
        step, error = 0, ""
        while "is told nothing more" not in error and step < 2000:
            step += 1
            telemetry.step(RECORD | {"step": step, "samples": 8 * step})
            error += capsys.readouterr().err
            time.sleep(0.01)
        telemetry.step(RECORD | {"step": step + 1, "samples": 8 * step})
    assert "is told nothing more" in error
    assert json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])["step"] == step + 1


def test_without_a_key_it_says_what_to_do(wandb, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(InputError, match=r"Weights & Biases: .*set WANDB_MODE=offline, or leave out"):
        train(tmp_path / "run", range(1, 2))


def test_without_the_package_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(InputError, match=r"this needs wandb.*pip install 'diffclip\[wandb\]'"):
        Telemetry(tmp_path, "test", 5, wandb="a-project")
    assert not (tmp_path / "wandb").exists()

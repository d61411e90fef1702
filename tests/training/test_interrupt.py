"""A signal to stop saves the state between two steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from test_loop import before_step, changed, lines, without_times

from diffclip.errors import StoppedError
from diffclip.training import run as runner
from diffclip.training.checkpoint import read_state
from diffclip.training.launch import StopRequest
from diffclip.training.recipe import Recipe


def test_a_run_that_is_asked_to_stop_goes_on_as_if_it_had_not(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(recipe, epochs=2)
    runner.train(recipe, tmp_path / "whole")
    before_step(monkeypatch, 7, lambda: os.kill(os.getpid(), signal.SIGTERM))
    before = signal.getsignal(signal.SIGTERM)
    told = r"asked to stop at step 7, saved in .*go on with --resume"
    with pytest.raises(StoppedError, match=told) as error:
        runner.train(recipe, tmp_path / "cut")
    assert error.value.exit_code == 75
    assert signal.getsignal(signal.SIGTERM) == before
    assert read_state(tmp_path / "cut" / "checkpoints" / "last").step == 7
    assert len(lines(tmp_path / "cut" / "metrics.jsonl")) == 7
    runner.train(recipe, tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(tmp_path / "cut" / name) == without_times(tmp_path / "whole" / name)


@pytest.mark.parametrize(
    ("place", "number"), [("open_validation_data", signal.SIGINT), ("_open_logger", signal.SIGUSR1)]
)
def test_a_run_that_is_asked_before_its_first_step_says_so(
    place: str, number: int, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, work = changed(recipe, epochs=1), getattr(runner, place)

    def ask(*arguments: Any, **options: Any) -> Any:
        done = work(*arguments, **options)
        os.kill(os.getpid(), number)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(runner, place, ask)
        told = "before its first step: run the command again with --resume"
        with pytest.raises(StoppedError, match=told) as error:
            runner.train(recipe, tmp_path / "run")
    assert error.value.exit_code == 75
    assert runner.train(recipe, tmp_path / "run", resume=True).progress.step == 5


def test_a_signal_during_the_imports_is_a_stop_too(recipe_file: Path, tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "diffclip.cli",
        "train",
        str(recipe_file),
        "--run",
        str(tmp_path / "run"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not catches_sigterm(process.pid):
        assert process.poll() is None
        time.sleep(0.005)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 75
    assert told == "diffclip: asked to stop before the first step: run the command again with --resume\n"


def catches_sigterm(pid: int) -> bool:
    caught = Path(f"/proc/{pid}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


def test_a_signal_that_a_reader_took_for_a_broken_file_is_not_lost(tmp_path: Path) -> None:
    with StopRequest(tmp_path) as stop:
        with suppress(Exception):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked == signal.SIGTERM

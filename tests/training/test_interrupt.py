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
import torch
from test_loop import changed, lines, without_times

from diffclip.errors import StoppedError
from diffclip.training import run as runner
from diffclip.training.checkpoint import read_state
from diffclip.training.launch import StopRequest
from diffclip.training.recipe import Recipe


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_asked_to_stop_goes_on_as_if_it_had_not(
    number: signal.Signals, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(recipe, epochs=2)
    runner.train(recipe, tmp_path / "whole")
    step = torch.optim.AdamW.step
    calls = iter(range(1, 1000))

    def step_and_ask(self: torch.optim.AdamW, *arguments: Any) -> Any:
        if next(calls) == 7:
            os.kill(os.getpid(), number)
        return step(self, *arguments)

    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "step", step_and_ask)
        with pytest.raises(
            StoppedError, match=r"asked to stop at step 7, saved in .*go on with --resume"
        ) as error:
            runner.train(recipe, tmp_path / "cut")
    assert error.value.exit_code == 75
    assert signal.getsignal(number) == before
    assert read_state(tmp_path / "cut" / "checkpoints" / "last").step == 7
    assert len(lines(tmp_path / "cut" / "metrics.jsonl")) == 7
    runner.train(recipe, tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(tmp_path / "cut" / name) == without_times(tmp_path / "whole" / name)


@pytest.mark.parametrize("when", ["while it prepares", "before the first step"])
def test_a_run_that_is_asked_early_says_so(
    when: str, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "open_validation_data" if when == "while it prepares" else "_open_logger"
    work = getattr(runner, place)

    def ask(*arguments: Any, **options: Any) -> Any:
        done = work(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(runner, place, ask)
        with pytest.raises(
            StoppedError, match="before its first step: run the command again with --resume"
        ) as error:
            runner.train(recipe, tmp_path / "run")
    assert error.value.exit_code == 75
    assert runner.train(recipe, tmp_path / "run", resume=True).progress.step == 15


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
    while not _catches_sigterm(process.pid):
        assert process.poll() is None
        time.sleep(0.005)
    process.terminate()
    _, told = process.communicate(timeout=60)
    assert process.returncode == 75
    assert told == "diffclip: asked to stop before the first step: run the command again with --resume\n"


def _catches_sigterm(pid: int) -> bool:
    [line] = [
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    ]
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_a_signal_that_a_reader_took_for_a_broken_file_is_not_lost(tmp_path: Path) -> None:
    with StopRequest(tmp_path) as stop:
        with suppress(Exception):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.asked == signal.SIGTERM

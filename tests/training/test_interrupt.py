"""A signal to stop saves the state between two steps."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import changed, lines, without_times

from diffclip.training import loop, start
from diffclip.training.checkpoint import read_progress
from diffclip.training.interrupt import StoppedError
from diffclip.training.recipe import Recipe


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_run_that_is_asked_to_stop_goes_on_as_if_it_had_not(
    number: signal.Signals, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = changed(recipe, epochs=2)
    loop.train(recipe, tmp_path / "whole")
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
            loop.train(recipe, tmp_path / "cut")
    assert error.value.exit_code == 75
    assert signal.getsignal(number) == before
    assert read_progress(tmp_path / "cut").step == 7
    assert len(lines(tmp_path / "cut" / "metrics.jsonl")) == 7
    loop.train(recipe, tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(tmp_path / "cut" / name) == without_times(tmp_path / "whole" / name)


@pytest.mark.parametrize("when", ["while it prepares", "before the first step"])
def test_a_run_that_is_asked_early_says_so(
    when: str, recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = "open_validation_data" if when == "while it prepares" else "start_telemetry"
    module = start if when == "while it prepares" else loop
    work = getattr(module, place)

    def ask(*arguments: Any, **options: Any) -> Any:
        done = work(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)
        return done

    with monkeypatch.context() as patch:
        patch.setattr(module, place, ask)
        with pytest.raises(StoppedError, match="before its first step: start it again") as error:
            loop.train(recipe, tmp_path / "run")
    assert error.value.exit_code == 75
    assert loop.train(recipe, tmp_path / "run").progress.step == 15

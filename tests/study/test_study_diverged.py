"""Runs whose numbers are not finite: they are told, kept, and stop nothing."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import diffclip_command
from tiny_study import STUDY

from diffclip.model import CLIP
from diffclip.report.runs import read_run
from diffclip.study.choose import choose
from diffclip.study.folder import diverged_at, is_finished, read_cost
from diffclip.study.one import Place, Work
from diffclip.study.plan import grid_runs
from diffclip.study.recipe import Study, read_study


def _spoil_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    forward = CLIP.forward

    def spoiled(self: CLIP, images: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        out = forward(self, images, tokens)
        return {**out, "logit_scale": out["logit_scale"] * float("nan")}

    monkeypatch.setattr(CLIP, "forward", spoiled)


def test_a_run_that_diverges_in_its_first_step_is_finished_too(
    study: Study, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    _spoil_losses(monkeypatch)
    planned = grid_runs(study, {})[0]
    assert Work(study, place).do(planned) == -math.inf
    folder = place.output / str(planned)
    assert sorted(path.name for path in folder.iterdir()) == ["cost.json", "recipe.yaml"]
    cost: Any = read_cost(folder)
    assert (cost["diverged"], cost["step_seconds"], cost["suite"]) == (1, None, "brief")
    assert is_finished(study, planned, place.output)


def test_a_sweep_goes_past_rates_that_diverge(
    study_file: Callable[..., Path], data: Path, tmp_path: Path
) -> None:
    file = study_file(sweep={**STUDY["sweep"], "lr": [1e30, 1e-3]})
    words = ("study", file, "--data", data, "--runs", tmp_path / "runs", "--output", tmp_path / "out")
    ended = diffclip_command(*words, "--only", "sweep", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["done"] == 4
    for arm in ("CLIP", "DiffCLIP"):
        assert f"sweep/{arm}-lr1e+30-wd0.1-s100: DIVERGED in step 2, not tried again" in ended.stderr
        diverged = tmp_path / "out" / "sweep" / f"{arm}-lr1e+30-wd0.1-s100"
        assert diverged_at(diverged) == 2
        assert len(read_run(diverged).steps["step"]) == 2  # its embeddings were not finite thereafter
    assert {settings.lr for settings in choose(read_study(file), tmp_path / "out").values()} == {1e-3}
    assert ": started" not in diffclip_command(*words, "--only", "sweep").stderr

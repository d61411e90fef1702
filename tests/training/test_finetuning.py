"""A plain CLIP made differential and trained on: it starts as what it was, learns its second map, and resumes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from test_loop import KilledError, before_step, die

import diffclip
from diffclip import CLIP
from diffclip.config import variant_config
from diffclip.convert import to_differential
from diffclip.study.runs import read_run
from diffclip.training import run as runner
from diffclip.training.checkpoint import read_state
from diffclip.training.recipe import Recipe, parse_recipe, read_recipe
from diffclip.weights import save_weights


@pytest.fixture(scope="module")
def starts(fields: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain CLIP and the same made differential."""
    folder = tmp_path_factory.mktemp("starts")
    plain = CLIP(variant_config("CLIP", fields["architecture"]), seed=0)
    save_weights(plain, folder / "plain")
    save_weights(to_differential(plain), folder / "added")
    return folder


def tuned(fields: dict[str, Any], weights: Path, **more: Any) -> Recipe:
    rest = {key: value for key, value in fields.items() if key != "architecture"}
    return parse_recipe(rest | {"model": "of-weights", "weights": str(weights), **more}, "test")


def first_loss(run: Path) -> float:
    return float(json.loads((run / "metrics.jsonl").read_text().splitlines()[0])["loss"])


def test_the_second_map_is_learnt_from_what_the_model_was(
    fields: dict[str, Any], starts: Path, tmp_path: Path
) -> None:
    for name in ("plain", "added"):
        runner.train(tuned(fields, starts / name, epochs=2 if name == "added" else 1), tmp_path / name)
    assert first_loss(tmp_path / "added") == pytest.approx(first_loss(tmp_path / "plain"), abs=1e-5)
    before = diffclip.load(starts / "added")[0].state_dict()
    after = diffclip.load(tmp_path / "added" / "checkpoints" / "last")[0].state_dict()
    second = [name for name in before if "q2_proj.weight" in name or "k2_proj.weight" in name]
    assert len(second) == 8
    assert not any(torch.equal(before[name], after[name]) for name in second)
    run = read_run(tmp_path / "added")
    assert run.rows[-1]["step"] == 10
    assert all(0 not in values for values in run.rows[-1]["lambda"].values())
    assert all(len(layers) == 2 for layers in run.validations[-1]["map_correlation"].values())


def test_a_run_goes_on_by_its_own_recipe_without_the_weights(
    fields: dict[str, Any], starts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(starts / "added", tmp_path / "start")
    recipe = tuned(fields, tmp_path / "start", epochs=2)
    with monkeypatch.context() as patch:
        before_step(patch, 7, die)
        with pytest.raises(KilledError):
            runner.train(recipe, tmp_path / "run")
    assert read_state(tmp_path / "run" / "checkpoints" / "last").step < 10
    shutil.rmtree(tmp_path / "start")
    own = read_recipe(tmp_path / "run" / "recipe.yaml")
    assert own == recipe
    assert runner.train(own, tmp_path / "run", resume=True).progress.step == 10

"""Experiment E on made runs: a model that needs half of CLIP's steps, each of which takes 1.25 times as long."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from diffclip.evaluation.verdicts import write_verdicts
from diffclip.report.frame import read_results
from experiments.seed_rows import read_rows, write_rows
from experiments.study_e import multiplier

MILLISECONDS = dict(zip(multiplier.ARMS, (40.0, 36.0, 50.0), strict=True))


def test_a_model_that_needs_half_of_the_steps_is_worth_1_6_times_the_compute(
    tmp_path: Path, monkeypatch
) -> None:
    noise = np.random.default_rng(0)
    rows = [
        {"model": arm, "lr": 1e-3, "steps": 0, "metric": "step_milliseconds", "values": [time] * 3}
        for arm, time in MILLISECONDS.items()
    ]
    for rate in multiplier.RATES:
        for arm in multiplier.ARMS:
            for steps in multiplier.LENGTHS:
                worth = 2 * steps if arm == "DiffCLIP-vision" else steps
                recall = 10 + 8 * np.log2(worth / 500) - (rate != 1e-3)
                values = recall + noise.normal(0, 0.1, len(multiplier.SEEDS + multiplier.SWEEP_SEEDS))
                row = {"model": arm, "lr": rate, "steps": steps, "metric": "mean_recall"}
                rows.append(row | {"values": values.tolist()})
    shutil.copy(multiplier.FOLDER / "spec.yaml", tmp_path)
    monkeypatch.setattr(multiplier, "FOLDER", tmp_path)
    write_rows(tmp_path / "runs.csv", rows)
    multiplier.write_results(read_rows(tmp_path / "runs.csv"), tmp_path)
    verdicts = read_results([tmp_path]).verdicts
    write_verdicts(tmp_path, verdicts)
    [primary] = verdicts[verdicts["primary"]].itertuples()
    assert (primary.arm, primary.metric, primary.verdict) == ("DiffCLIP-vision", "log2_compute", "better")
    assert 2**primary.difference == pytest.approx(2 / 1.25, rel=0.02)
    section = multiplier.multipliers()
    assert "- DiffCLIP-vision: 1.60 times CLIP's time" in section
    assert "| DiffCLIP-vision | 0.001 | 1.25 | 18.0 | 26.0 | 34.0 | 42.0 |" in section

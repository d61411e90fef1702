"""Real runs killed at random moments go on as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from test_loop import changed, without_times

from diffclip.training.recipe import Recipe, to_yaml

pytestmark = pytest.mark.slow(minutes=2)


def start(recipe: Recipe, run: Path, *options: str) -> subprocess.Popen[bytes]:
    file = run.with_suffix(".yaml")
    file.write_text(to_yaml(recipe))
    command = [sys.executable, "-m", "diffclip.cli", "train", str(file), "--run", str(run), *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # a group of its own, so that its helpers die with it
    with run.with_suffix(".log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)


def steps_of(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text(errors="replace").count("\n") if file.is_file() else 0


def killed_until_done(recipe: Recipe, run: Path, kills: int, seed: int, *options: str) -> list[int]:
    """Train `recipe`, killing it `kills` times some time after it has made its first step of a start (or before); the
    steps that were made when it was killed."""
    draw = random.Random(seed)
    made: list[int] = []
    while len(made) < kills:
        process = start(recipe, run, *(["--resume"] if run.exists() else []), *options)
        before, wanted = steps_of(run), draw.choice([0, 1, 1, 2, 3])
        deadline = time.monotonic() + 120
        while process.poll() is None and steps_of(run) < before + wanted and time.monotonic() < deadline:
            time.sleep(0.005)
        # within a step, a checkpoint, a validation, or while it starts
        time.sleep(draw.uniform(0, 0.3) if wanted else draw.uniform(0, 6))
        assert process.poll() is None, run.with_suffix(".log").read_text()[-2000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        made.append(steps_of(run))
    process = start(recipe, run, "--resume", *options)
    assert process.wait() == 0, run.with_suffix(".log").read_text()[-2000:]
    return made


def test_a_run_killed_twenty_times_has_the_numbers_of_one_never_killed(
    recipe: Recipe, tmp_path: Path
) -> None:
    recipe = changed(recipe, epochs=20, checkpoint_every=2, data={"workers": 1})
    whole = start(recipe, tmp_path / "whole")
    assert whole.wait() == 0, (tmp_path / "whole.log").read_text()[-2000:]
    made = killed_until_done(recipe, tmp_path / "cut", 20, seed=1)
    assert len(set(made)) > 5, made
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(tmp_path / "cut" / name) == without_times(tmp_path / "whole" / name)
    files = [tmp_path / run / "checkpoints" / "last" / "model.safetensors" for run in ("whole", "cut")]
    assert files[0].read_bytes() == files[1].read_bytes()
    kept = {path.name for path in (tmp_path / "cut" / "checkpoints").iterdir()}
    assert not [name for name in kept if name.endswith(".tmp") or name.startswith("damaged")], kept


def samples(run: Path) -> list[tuple[Any, ...]]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [(record["step"], record["epoch"], record["samples"], record["lr"]) for record in records]


def test_two_processes_killed_see_the_same_samples(recipe: Recipe, tmp_path: Path) -> None:
    recipe = changed(recipe, epochs=5, checkpoint_every=2)
    two = ("--devices", "2", "--accelerator", "cpu")
    assert start(recipe, tmp_path / "whole", *two).wait() == 0
    made = killed_until_done(recipe, tmp_path / "cut", 2, 2, *two)
    assert any(made)
    assert samples(tmp_path / "cut") == samples(tmp_path / "whole")
    for one, other in zip(
        without_times(tmp_path / "cut" / "metrics.jsonl"),
        without_times(tmp_path / "whole" / "metrics.jsonl"),
        strict=True,
    ):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)

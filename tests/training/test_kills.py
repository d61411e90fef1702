"""A real run killed at random moments goes on as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import forked
import pytest
from test_loop import changed, without_times

from diffclip.training.recipe import Recipe


def train(recipe: Recipe, run: Path) -> None:
    os.setsid()  # a group of its own, so that its data workers die with it
    from diffclip.training import run as runner

    runner.train(recipe, run, resume=True)


def begin(recipe: Recipe, run: Path) -> ForkServerProcess:
    """Train in a process that has imported everything already."""
    process = forked.begin(run.with_suffix(".log"), train, recipe, run)
    while process.exitcode is None and os.getpgid(process.pid) != process.pid:
        time.sleep(0.001)
    return process


def steps_of(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text(errors="replace").count("\n") if file.is_file() else 0


def half_written(run: Path) -> int:
    """When the files of a checkpoint that is not whole were last changed, in nanoseconds; 0 if there is none."""
    folder = run / "checkpoints" / ".new.tmp"
    try:
        return folder.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


@pytest.mark.slow(minutes=2)
def test_a_run_killed_twenty_times_has_the_numbers_of_one_never_killed(
    recipe: Recipe, tmp_path: Path
) -> None:
    recipe, draw = changed(recipe, epochs=60, checkpoint_every=2, data={"workers": 1}), random.Random(1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    begin(recipe, whole).join()
    made, halves = [], 0
    for number in range(20):
        old = half_written(cut)
        process = begin(recipe, cut)
        before, wanted = steps_of(cut), draw.choice([0, 1, 1, 2, 3])
        while process.exitcode is None and steps_of(cut) < before + wanted:
            time.sleep(0.002)
        # within a step, a checkpoint, a validation, or while it starts
        time.sleep(draw.uniform(0, 0.3 if wanted else 1.5))
        while number % 4 == 0 and process.exitcode is None and half_written(cut) in (0, old):
            pass
        assert process.exitcode is None, cut.with_suffix(".log").read_text()[-2000:]
        os.killpg(process.pid, signal.SIGKILL)
        process.join()
        made.append(steps_of(cut))
        halves += half_written(cut) not in (0, old)
    assert len(set(made)) > 5, made
    assert halves  # kills that hit a checkpoint that was being written
    process = begin(recipe, cut)
    process.join()
    assert process.exitcode == 0, cut.with_suffix(".log").read_text()[-2000:]
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(cut / name) == without_times(whole / name)
    ends = (run / "checkpoints" / "last" / "model.safetensors" for run in (whole, cut))
    assert next(ends).read_bytes() == next(ends).read_bytes()
    kept = {path.name for path in (cut / "checkpoints").iterdir()}
    assert not [name for name in kept if name.endswith(".tmp")], kept

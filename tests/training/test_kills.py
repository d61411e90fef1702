"""Real runs killed at random moments go on as if nothing had happened."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
from test_loop import changed, without_times
from test_processes import start

from diffclip.training.recipe import Recipe

pytestmark = pytest.mark.slow(minutes=2)


def train(recipe: Recipe, run: Path, resume: bool) -> None:
    os.setsid()  # a group of its own, so that its data workers die with it
    from diffclip.training.run import train

    with run.with_suffix(".log").open("a") as log, contextlib.redirect_stderr(log):
        train(recipe, run, resume)


def begin(recipe: Recipe, run: Path) -> ForkServerProcess:
    """Train in a process that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["diffclip.training.run", "lightning.fabric", "open_clip.loss"])
    process = context.Process(target=train, args=(recipe, run, True))
    process.start()
    while process.exitcode is None and os.getpgid(process.pid) != process.pid:
        time.sleep(0.005)
    return process


def steps_of(run: Path) -> int:
    file = run / "metrics.jsonl"
    return file.read_text(errors="replace").count("\n") if file.is_file() else 0


def kill(pid: int, ended: Callable[[], Any], run: Path, draw: random.Random, starting: float) -> int:
    """Kill a training some time after it has made its first step of a start (or before, within `starting` seconds);
    the steps that were made."""
    before, wanted = steps_of(run), draw.choice([0, 1, 1, 2, 3])
    deadline = time.monotonic() + 120
    while ended() is None and steps_of(run) < before + wanted and time.monotonic() < deadline:
        time.sleep(0.005)
    # within a step, a checkpoint, a validation, or while it starts
    time.sleep(draw.uniform(0, 0.3 if wanted else starting))
    assert ended() is None, run.with_suffix(".log").read_text()[-2000:]
    os.killpg(pid, signal.SIGKILL)
    return steps_of(run)


def test_a_run_killed_twenty_times_has_the_numbers_of_one_never_killed(
    recipe: Recipe, tmp_path: Path
) -> None:
    recipe, draw = changed(recipe, epochs=20, checkpoint_every=2, data={"workers": 1}), random.Random(1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    begin(recipe, whole).join()
    made = []
    for _ in range(20):
        process = begin(recipe, cut)
        made.append(kill(process.pid, lambda p=process: p.exitcode, cut, draw, starting=1))
        process.join()
    assert len(set(made)) > 5, made
    process = begin(recipe, cut)
    process.join()
    assert process.exitcode == 0, cut.with_suffix(".log").read_text()[-2000:]
    for name in ("metrics.jsonl", "validation.jsonl"):
        assert without_times(cut / name) == without_times(whole / name)
    ends = (run / "checkpoints" / "last" / "model.safetensors" for run in (whole, cut))
    assert next(ends).read_bytes() == next(ends).read_bytes()
    kept = {path.name for path in (cut / "checkpoints").iterdir()}
    assert not [name for name in kept if name.endswith(".tmp")], kept


def test_two_processes_killed_see_the_same_samples(recipe: Recipe, tmp_path: Path) -> None:
    recipe, draw = changed(recipe, epochs=5, checkpoint_every=2), random.Random(2)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert start(recipe, whole, new_group=True).wait() == 0
    made = []
    for _ in range(2):
        process = start(recipe, cut, "--resume", new_group=True)
        made.append(kill(process.pid, process.poll, cut, draw, starting=6))
        process.wait()
    assert any(made)
    assert start(recipe, cut, "--resume").wait() == 0
    for one, other in zip(*(without_times(run / "metrics.jsonl") for run in (cut, whole)), strict=True):
        assert [one[key] for key in ("step", "epoch", "samples", "lr")] == [
            other[key] for key in ("step", "epoch", "samples", "lr")
        ]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-4)

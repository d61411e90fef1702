"""Runs of a study one by one: what they leave, what a second call does, and what a kill loses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from in_process import diffclip_command
from tiny_study import ABLATIONS, STUDY

from diffclip.files import lock_file
from diffclip.report.runs import read_run
from diffclip.report.save import save_run
from diffclip.study.attempt import attempt
from diffclip.study.choose import best_score
from diffclip.study.folder import is_finished, read_cost
from diffclip.study.measure import MEASURED_FILE
from diffclip.study.one import Place, Work, wait_for_leftovers, why_anew
from diffclip.study.plan import Planned, grid_runs
from diffclip.study.recipe import Study, read_study

# what differs between two runs of the same recipe
TIMES = ("samples_per_second", "data_wait")


def test_a_run_is_trained_measured_and_condensed(study: Study, place: Place) -> None:
    planned = grid_runs(study, {})[1]
    score = Work(study, place).do(planned)
    folder, run = place.output / str(planned), place.runs / str(planned)
    assert sorted(path.name for path in folder.iterdir()) == [
        *("cost.json", "metrics.jsonl", "recipe.yaml", "results.jsonl", "validation.jsonl")
    ]
    assert is_finished(study, planned, place.output)
    assert score == pytest.approx(best_score(folder), rel=1e-4)
    read = read_run(folder)
    assert read.variant == "DiffCLIP"
    assert {record.weights for record in read.records} == {"DiffCLIP-s0/checkpoints/best"}
    assert {record.task for record in read.records} >= {"retrieval", "zero-shot"}
    assert not (run / "checkpoints").exists()
    assert "epoch 2: validation" in run.with_name("DiffCLIP-s0.log").read_text()

    cost: Any = read_cost(folder)
    assert 0 < cost["step_seconds"] <= cost["seconds"] < 600
    assert cost["suite_seconds"] > 0
    assert (cost["suite"], cost["side_by_side"], cost["memory_of"]) == ("brief", 1, "process")
    assert cost["peak_memory"] is None or cost["peak_memory"] > 50_000_000
    assert cost["parameters"] > 49408 * 16


def test_a_condensed_run_that_is_wanted_anew_starts_anew(study: Study, place: Place) -> None:
    planned = grid_runs(study, {})[0]
    work = Work(study, place)
    first = work.do(planned)
    for file in (place.output / str(planned)).iterdir():
        file.unlink()
    assert work.do(planned) == first
    assert is_finished(study, planned, place.output)


def test_the_memory_of_a_training_that_nobody_watched_is_not_known(study: Study, place: Place) -> None:
    kept = Place(place.data, place.runs, place.output, "cpu", 1, save_run, keep=True)
    planned = grid_runs(study, {})[0]
    Work(study, kept).do(planned)
    (kept.runs / str(planned) / MEASURED_FILE).unlink()
    assert (kept.runs / str(planned) / "checkpoints").is_dir()
    Work(study, kept).do(planned)
    cost: Any = read_cost(kept.output / str(planned))
    assert cost["peak_memory"] is None
    assert cost["seconds"] > 0


def test_a_run_of_other_settings_or_data_is_removed_and_trained_anew(
    study_file: Callable[..., Path], place: Place, tmp_path: Path
) -> None:
    study, kept = read_study(study_file(sweep=None)), replace(place, keep=True)
    planned = grid_runs(study, {})[0]
    Work(study, kept).do(planned)
    run, log = place.runs / str(planned), place.runs / "models" / "CLIP-s0.log"
    assert why_anew(study, kept, planned) is None
    slower = read_study(study_file(sweep=None, change={"lr": 1e-5}))
    (other,) = (one for one in grid_runs(slower, {}) if str(one) == str(planned))
    assert why_anew(slower, kept, other) == "started with lr=0.0005, not 1e-05"
    Work(slower, kept).do(other)
    assert is_finished(slower, other, place.output)
    assert f"{run} was started with lr=0.0005, not 1e-05: removed, to be trained anew" in log.read_text()
    elsewhere = read_study(study_file(sweep=None, change={"lr": 1e-5}, data="cifar10"))
    assert f"{place.data}/flickr8k/train, not " in str(why_anew(elsewhere, kept, other))
    moved = tmp_path / "moved"
    moved.symlink_to(place.data)
    assert why_anew(slower, replace(kept, data=moved), other) is None


def test_a_run_that_fails_tells_why_in_a_line(study: Study, place: Place, tmp_path: Path) -> None:
    nowhere = Place(tmp_path / "nowhere", place.runs, place.output, "cpu", 1, save_run)
    ended = attempt(Work(study, nowhere), grid_runs(study, {})[0])
    assert ended.score is None
    assert not ended.stopped
    assert "nowhere" in ended.failure
    assert "\n" not in ended.failure


def test_sigterm_between_steps_stops_a_run_that_then_goes_on(study: Study, place: Place) -> None:
    class Stopping(Work):
        def do(self, planned: Planned) -> float:
            os.kill(os.getpid(), signal.SIGTERM)
            return super().do(planned)

    planned = grid_runs(study, {})[0]
    assert attempt(Stopping(study, place), planned).stopped
    assert attempt(Work(study, place), planned).score is not None
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def test_the_grid_in_order_once_with_what_the_sweep_chose(
    study_file: Callable[..., Path], data: Path, tmp_path: Path
) -> None:
    file = study_file(
        sweep={**STUDY["sweep"], "lr": [1e-3]}, ablations=ABLATIONS, models={**STUDY["models"], "seeds": [0]}
    )
    words = ("study", file, "--data", data, "--runs", tmp_path / "runs", "--output", tmp_path / "out")
    first = diffclip_command(*words, "--only", "sweep", "--json")
    assert first.returncode == 0, first.stderr
    assert json.loads(first.stdout) == {
        **{"total": 2, "done": 2, "stopped": None, "failures": {}, "output": str(tmp_path / "out")}
    }
    second = diffclip_command(*words)
    assert second.returncode == 0, second.stderr
    assert "5 of 5 runs done" in second.stdout
    told = [line for line in second.stderr.splitlines() if ": started" in line]
    assert [line.split(":")[0] for line in told] == [
        *("models/CLIP-s0", "models/DiffCLIP-s0", "ablations/DiffCLIP-no-norm-s0")
    ]
    assert "score" in second.stderr
    assert "samples/s" not in second.stderr

    dry = diffclip_command(*words, "--dry-run", "--json")
    plan = json.loads(dry.stdout)
    assert (plan["done"], plan["total"], plan["problems"], plan["seconds_left"]) == (5, 5, [], 0)
    for arm, settings in plan["chosen"].items():
        assert read_run(tmp_path / "out" / "models" / f"{arm}-s0").recipe["lr"] == settings["lr"]
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json*")}
    assert diffclip_command(*words).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.json*")} == before


def _start(words: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("ab") as handle:
        return subprocess.Popen(
            [sys.executable, "-m", "diffclip.cli", *words],
            stdout=handle,
            stderr=handle,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )


def _finished(out: Path) -> int:
    return len([file for file in out.glob("*/*/cost.json") if not file.parent.name.startswith(".")])


def _numbers(folder: Path) -> Any:
    """What a condensed run tells, without times."""
    run = read_run(folder)
    steps = {name: values for name, values in run.steps.items() if name not in TIMES}
    values = [(record.task, record.dataset, record.metric, record.value) for record in run.records]
    return steps, run.lambdas, run.validation, values, {**run.recipe, "data": None}


@pytest.mark.slow(minutes=1)
def test_a_grid_killed_stopped_and_interrupted_ends_as_one_that_was_not(
    study_file: Callable[..., Path], data: Path, tmp_path: Path
) -> None:
    file = study_file(change={"epochs": 4, "checkpoint_every": 1}, sweep={**STUDY["sweep"], "lr": [1e-3]})

    def words(name: str, *more: str) -> list[str]:
        folders = {"--data": data, "--runs": tmp_path / name / "runs", "--output": tmp_path / name / "out"}
        return ["study", str(file), *(str(word) for pair in folders.items() for word in pair), *more]

    whole = diffclip_command(*words("whole"))
    assert whole.returncode == 0, whole.stderr

    log, out, runs = tmp_path / "cut.log", tmp_path / "cut" / "out", tmp_path / "cut" / "runs"
    two = words("cut", "--workers", "2")

    def going() -> bool:
        return any((path / "checkpoints" / "last").exists() for path in runs.glob("*/*"))

    def wait_for(seen: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 400
        while not seen():
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.01)

    process = _start(two, log)
    wait_for(going, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(out.glob("models/*"))

    process = _start(two, log)
    wait_for(lambda: _finished(out) >= 1, process)
    os.kill(process.pid, signal.SIGINT)
    assert process.wait(200) == 130, log.read_text()[-3000:]
    assert "of 6 runs done, the same command goes on" in log.read_text()

    before = _finished(out)
    process = _start(two, log)
    wait_for(lambda: _finished(out) > before, process)
    os.kill(process.pid, signal.SIGKILL)  # the workers see to themselves
    process.wait()
    last = diffclip_command(*words("cut"))
    assert last.returncode == 0, last.stderr

    assert _finished(out) == 6
    assert not list(out.rglob("*.tmp"))
    assert not list(runs.rglob("checkpoints"))
    for folder in sorted(path.parent for path in (tmp_path / "whole" / "out").glob("*/*/cost.json")):
        name = folder.relative_to(tmp_path / "whole" / "out")
        np.testing.assert_equal(_numbers(out / name), _numbers(folder), err_msg=str(name))


def test_a_run_waits_for_the_worker_that_a_killed_study_left(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from diffclip.files import lock_file; "
        "lock = lock_file(Path(sys.argv[1])); print('held', flush=True); time.sleep(1)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / ".lock"], stdout=subprocess.PIPE, text=True
    ) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "held\n"
        assert isinstance(lock_file(tmp_path / ".lock"), str)
        wait_for_leftovers(tmp_path)
        free = lock_file(tmp_path / ".lock")
        assert not isinstance(free, str)
        free.close()

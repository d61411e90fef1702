"""`diffclip study` with real processes: the files that it leaves, a second call, and recovery after a kill."""

import copy
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import forked
import pytest
from in_process import diffclip_command
from tiny_study import ABLATIONS, STUDY

from diffclip.cli.main import main
from diffclip.evaluation.records import load_records
from diffclip.study.executors import Local
from diffclip.study.grid import plan
from diffclip.study.job import Job
from diffclip.study.results import StudyFolder
from diffclip.study.site import Site
from diffclip.study.spec import read_study
from diffclip.training.run_folder import read_lines, read_starts

ONE_RATE = {"lr": [1e-3], "weight_decay": [0.1], "seeds": [100]}
ONE_SEED = {**STUDY["models"], "seeds": [0]}  # type: ignore[dict-item]


def test_missing_data_is_listed_in_one_line_before_any_run(study_file, tmp_path: Path) -> None:
    (tmp_path / "none").mkdir()
    file = study_file(models={**ONE_SEED, "suite": "study"})
    ended = diffclip_command("study", file, "--data", tmp_path / "none", "--dry-run")
    assert ended.returncode == 2
    assert "0 of 6 runs are finished" in ended.stdout
    assert ended.stderr.startswith("diffclip: missing in ")
    assert ended.stderr.count("\n") == 1
    for message in ("flickr8k/train, the train split", "cifar10, ", "caltech101, "):
        assert message in ended.stderr
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("forked_jobs")
def test_grid_runs_once_in_order_with_the_sweeps_settings(study_file, diffclip_study, tmp_path: Path) -> None:
    file = study_file(sweep={**ONE_RATE, "lr": [1e30, 1e-3]}, ablations=ABLATIONS, models=ONE_SEED)
    out, runs = tmp_path / "out", tmp_path / "runs"
    first = diffclip_study(file, "--only", "sweep", "--workers", 2)
    assert first.returncode == 0, first.stderr
    assert first.stdout.startswith(f"{out}: 4 of 4 runs done\n")
    assert first.stderr.count("DIVERGED in step 2") == 2
    lines = StudyFolder(out).runs
    diverged = lines["sweep/CLIP-lr1e+30-wd0.1-s100"]
    assert (diverged["diverged"], diverged["score"]) == (2, None)
    assert not (out / "results.csv").exists()

    second = diffclip_study(file)
    assert second.returncode == 0, second.stderr
    assert "7 of 7 runs done" in second.stdout
    assert second.stdout.endswith(f"diffclip report {out}\n")
    grid = ["models/CLIP-s0", "models/DiffCLIP-s0", "ablations/DiffCLIP-no-norm-s0"]
    assert [line.split(":")[0] for line in second.stderr.splitlines() if ": started" in line] == grid
    assert "samples/s" not in second.stderr  # it is in the run's log
    assert "samples/s" in (runs / "models" / "DiffCLIP-s0.log").read_text()
    files = {
        ".lock",
        "curves.jsonl",
        "protocols.yaml",
        "results.csv",
        "runs.jsonl",
        "spec.yaml",
    }
    assert {path.name for path in out.iterdir()} == files
    assert not list(runs.rglob("checkpoints"))
    _check_files(out)

    unchanged = [out / name for name in files - {".lock", "spec.yaml"}]
    before = {path: path.stat().st_mtime_ns for path in unchanged}
    assert diffclip_study(file).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in unchanged} == before
    assert diffclip_study(file, "ablations=null").returncode == 0

    ablations: dict[str, Any] = copy.deepcopy(ABLATIONS)
    ablations["arms"]["DiffCLIP-no-norm"]["change"]["lr"] = 1e-5
    changed = study_file(sweep={**ONE_RATE, "lr": [1e30, 1e-3]}, ablations=ablations, models=ONE_SEED)
    third = diffclip_study(changed)
    assert third.returncode == 0, third.stderr
    name = "ablations/DiffCLIP-no-norm-s0"
    assert f"{name}: started again, as the run in its folder had other settings" in third.stderr
    assert "models/" not in third.stderr
    assert StudyFolder(out).runs[name]["lr"] == 1e-5
    frame = load_records(out)
    assert len(frame[(frame["model"] == "DiffCLIP-no-norm") & (frame["task"] == "validation")]) == 1

    *others, _ = (out / "runs.jsonl").read_text().splitlines(keepends=True)
    (out / "runs.jsonl").write_text("".join(others))
    fourth = diffclip_study(changed)  # the run is made again, though its checkpoints are gone
    assert "7 of 7 runs done" in fourth.stdout, fourth.stderr
    assert f"{name}: started again, as the run in its folder has no checkpoints" in fourth.stderr


def _check_files(out: Path) -> None:
    """Check the lines, records and curves of the grid's three runs."""
    line = StudyFolder(out).runs["models/DiffCLIP-s0"]
    assert (line["group"], line["arm"], line["seed"], line["lr"]) == ("models", "DiffCLIP", 0, 1e-3)
    assert 0 < line["step_seconds"] < 1.5 * line["seconds"] / line["steps"] < 600
    assert line["suite_seconds"] > 0
    assert line["peak_memory"] > 50_000_000
    frame = load_records(out)
    assert set(frame["model"]) == {"CLIP", "DiffCLIP", "DiffCLIP-no-norm"}
    rows = frame[frame["model"] == "DiffCLIP"]
    assert {"retrieval", "zero-shot", "validation", "training", "cost"} <= set(rows["task"])
    (score,) = rows[(rows["task"] == "validation") & (rows["metric"] == "score")]["value"]
    assert score == pytest.approx(line["score"], rel=1e-5)
    lambdas = rows[rows["metric"] == "lambda"]
    assert list(lambdas["map"]) == ["vision", "text"]
    curves = {curve["run"]: curve for curve in read_lines(out / "curves.jsonl")}
    assert list(curves) == ["models/CLIP-s0", "models/DiffCLIP-s0", "ablations/DiffCLIP-no-norm-s0"]
    curve = curves["models/DiffCLIP-s0"]
    assert len(curve["step"]) == len(curve["loss"]) == len(curve["lambda"]["vision"])
    assert max(curve["validation"]["score"]) == pytest.approx(line["score"], rel=1e-4)


@pytest.mark.parametrize(("folder", "option"), [("runs", "--runs"), ("out", "--output")])
def test_two_studies_cannot_share_a_folder(folder, option, study_file, diffclip_study, tmp_path) -> None:
    (tmp_path / folder).mkdir()
    script = "import sys; from pathlib import Path; from diffclip.files import hold_lock\n"
    script += "with hold_lock(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"
    command, pipe = [sys.executable, "-c", script, tmp_path / folder / ".lock"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe) as other:
        assert other.stdout.readline() == b"held\n"
        ended = diffclip_study(study_file(sweep=None))
        other.communicate()
    assert ended.returncode == 2
    assert (
        f"is running a study in {tmp_path / folder}: wait for it, or choose another {option}" in ended.stderr
    )


def test_failed_run_is_reported_and_the_others_continue(study_file, diffclip_study, tmp_path: Path) -> None:
    log = tmp_path / "runs" / "models" / "CLIP-s0.log"
    log.mkdir(parents=True)
    ended = diffclip_study(study_file(sweep=None, models=ONE_SEED))
    assert ended.returncode == 1
    assert "(1 of 2 runs done" in ended.stderr
    assert "models/DiffCLIP-s0: score" in ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("diffclip: models/CLIP-s0 failed: ")
    assert "Is a directory" in ended.stderr
    shutil.rmtree(tmp_path / "runs")
    (tmp_path / "runs").write_text("in the way")
    assert f"cannot write {tmp_path / 'runs'}" in diffclip_study(study_file(sweep=None)).stderr


def test_runs_are_spread_over_the_visible_gpus(study_file, tmp_path: Path, monkeypatch) -> None:
    study = read_study(study_file(sweep=None))
    site = Site(tmp_path, tmp_path, tmp_path, "cuda", 3, 1)
    jobs = [site.job(study, planned) for planned in plan(study, {})[0]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,GPU-7")
    taken: list[str] = []
    process = Mock(poll=Mock(return_value=None))
    monkeypatch.setattr(
        "diffclip.study.executors._start_process", lambda _, gpu: taken.append(gpu) or process
    )
    executor = Local(3, "cuda")
    executor.start(jobs[:3])
    assert (taken, executor.free(), len(executor.live())) == (["4", "GPU-7", "4"], 0, 3)
    process.poll.return_value = 0
    assert (executor.live(), executor.free()) == (set(), 3)


@pytest.mark.usefixtures("forked_jobs")
def test_study_kills_a_run_that_does_not_stop(study_file, diffclip_study, monkeypatch) -> None:
    start = Local.start

    def start_and_stop(executor: Local, jobs: Sequence[Job]) -> None:
        start(executor, jobs)
        if jobs:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("diffclip.study.runs._GRACE", -1.0)
    monkeypatch.setattr(Local, "start", start_and_stop)
    file = study_file(change={"epochs": 100_000}, sweep=None, models=ONE_SEED)
    ended = diffclip_study(file)
    assert ended.returncode == 75, ended.stderr
    assert ended.stderr.endswith("diffclip: asked to stop: 0 of 2 runs done, the same command goes on\n")
    assert "DiffCLIP-s0" not in ended.stderr


def _run_in_session(words: list[str]) -> None:
    """Run `diffclip WORDS` in a new session."""
    os.setsid()
    sys.argv = ["diffclip", *words]
    main()


@pytest.mark.slow(minutes=1)
@pytest.mark.usefixtures("forked_jobs")
def test_killed_and_interrupted_study_resumes_to_the_same_results(
    study_file: Callable[..., Path], data: Path, tmp_path: Path
) -> None:
    file = study_file(change={"epochs": 16, "checkpoint_every": 1}, sweep=None, models=ONE_SEED)
    log, out, runs = tmp_path / "cut.log", tmp_path / "cut" / "out", tmp_path / "cut" / "runs"

    def words(name: str) -> list[str]:
        folders = {"--data": data, "--runs": tmp_path / name / "runs", "--output": tmp_path / name / "out"}
        return ["study", str(file), *(str(word) for pair in folders.items() for word in pair)]

    def start() -> ForkServerProcess:
        """Start the study as a user does, with real processes of its runs."""
        return forked.begin(log, _run_in_session, words("cut"))

    def wait_for(seen: Callable[[], bool], process: ForkServerProcess) -> None:
        while not seen():
            assert process.exitcode is None, log.read_text()[-3000:]
            time.sleep(0.01)

    def steps(arm: str) -> int:
        return len(read_lines(runs / "models" / f"{arm}-s0" / "metrics.jsonl"))

    process = start()
    wait_for(lambda: (runs / "models/CLIP-s0/checkpoints/last").exists(), process)
    process.kill()  # its child processes end with it
    process.join()
    assert not StudyFolder(out).runs

    process = start()
    wait_for(lambda: steps("DiffCLIP") > 0, process)
    os.killpg(process.pid, signal.SIGINT)  # as Ctrl-C, which reaches all processes
    process.join(200)
    assert process.exitcode == 130, log.read_text()[-3000:]
    assert "1 of 2 runs done, the same command goes on" in log.read_text()

    process, before = start(), steps("DiffCLIP")
    wait_for(lambda: steps("DiffCLIP") > before, process)
    os.killpg(process.pid, signal.SIGTERM)  # as `timeout` and SLURM do
    process.join(200)
    assert process.exitcode == 75, log.read_text()[-3000:]
    assert "ended" in read_starts(runs / "models" / "DiffCLIP-s0")[-1]  # the study let its run save

    for name in ("cut", "whole"):
        last = diffclip_command(*words(name))
        assert last.returncode == 0, last.stderr
    assert not list(runs.rglob("checkpoints"))
    assert not list(out.rglob("*.tmp"))
    whole = StudyFolder(tmp_path / "whole" / "out").runs
    timed = {"seconds", "suite_seconds", "step_seconds", "peak_memory"}
    for name, line in StudyFolder(out).runs.items():
        for key in line.keys() - timed:
            assert line[key] == whole[name][key], (name, key)
    values = []
    for folder in (out, tmp_path / "whole" / "out"):
        frame = load_records(folder)
        rows = frame[frame["task"] != "cost"].sort_values(["model", "seed"], kind="stable")
        values.append(rows["value"].tolist())
    assert values[0] == values[1]

"""`diffclip study` with what it cannot use, and when its time is over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import diffclip_command
from tiny_study import STUDY, write_finished

from diffclip.study.choose import choose
from diffclip.study.plan import grid_runs, sweep_runs
from diffclip.study.recipe import read_study


@pytest.fixture
def run_study(data: Path, tmp_path: Path) -> Callable[..., Any]:
    def call(file: Path | str, *more: object) -> Any:
        folders = ("--data", data, "--runs", tmp_path / "runs", "--output", tmp_path / "out")
        return diffclip_command("study", file, *folders, *more)

    return call


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["study_cpo"], "unknown recipe 'study_cpo': did you mean 'study_cpu'"),
        (["study_cpu", "modls.seeds=[0]"], "unknown study key 'modls': did you mean 'models'"),
        (["study_cpu", "--only", "model"], "unknown group of runs 'model': did you mean 'models'"),
        (["study_cpu", "--minutes", "0"], "--minutes 0 is no time"),
        (["study_cpu", "--device", "cdua"], "device 'cdua' is not available here"),
    ],
)
def test_bad_words_are_told_in_a_line(words: list[str], told: str) -> None:
    ended = diffclip_command("study", *words)
    assert ended.returncode == 2
    assert told in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_missing_data_is_named_before_anything_is_done(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    file = study_file(models={**STUDY["models"], "suite": "study"})
    ended = diffclip_command("study", file, "--data", tmp_path / "none", "--dry-run")
    assert ended.returncode == 2
    assert (
        "oxford_pets3, a folder in clip_benchmark's layout; or do without it: models.suite=quick"
        in ended.stderr
    )
    assert "0 of 8 runs are finished" in ended.stdout
    for told in ("training data: ", "validation data: ", "missing in", "cifar10", "caltech101"):
        assert told in ended.stderr
    assert all(line.startswith("diffclip: ") for line in ended.stderr.splitlines())
    assert not (tmp_path / "runs").exists()


def test_folders_that_cannot_be_used_are_told(
    study_file: Callable[..., Path], run_study: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "runs").write_text("in the way")
    ended = run_study(study_file())
    assert ended.returncode == 2
    assert f"cannot write {tmp_path / 'runs'}" in ended.stderr
    (tmp_path / "runs").unlink()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "study.yaml").write_text("{title: Another, data: flickr8k}")
    ended = run_study(study_file(), "--dry-run")
    assert ended.returncode == 2
    assert 'holds a study with title="Another"' in ended.stderr


def test_two_arms_that_are_one_are_refused_before_anything_is_done(
    study_file: Callable[..., Path], run_study: Callable[..., Any], tmp_path: Path
) -> None:
    arms = {**STUDY["models"]["arms"], "twin": {"change": {"model": "CLIP", "init": "published"}}}
    ended = run_study(study_file(models={**STUDY["models"], "arms": arms}))
    assert ended.returncode == 2
    assert ended.stderr == "diffclip: arms CLIP and twin are one and the same: leave one out\n"
    assert not (tmp_path / "out").exists()


def test_a_plan_tells_arms_that_repeat_others_and_runs_that_are_trained_anew(
    study_file: Callable[..., Path], run_study: Callable[..., Any], tmp_path: Path
) -> None:
    arm = {"change": {"model": "CLIP"}, "settings": "DiffCLIP", "factor": "lr", "against": "CLIP"}
    ablations = {"seeds": [0], "suite": "brief", "arms": {"CLIP-as-DiffCLIP": arm}}
    before = read_study(study_file(ablations=ablations))
    for planned in sweep_runs(before):
        write_finished(before, planned, tmp_path / "out", 0.5)
    for planned in grid_runs(before, choose(before, tmp_path / "out")):
        write_finished(before, planned, tmp_path / "out", 0.5)
    # one more run of CLIP in the sweep, which wins
    sweep = {**STUDY["sweep"], "lr": [1e-3, 2e-3, 4e-3]}
    models = {**STUDY["models"], "seeds": [0, 1], "suite": "scenes"}
    file = study_file(ablations=ablations, sweep=sweep, models=models)
    study = read_study(file)
    for planned in sweep_runs(study)[-2:]:
        write_finished(study, planned, tmp_path / "out", 0.9 if planned.arm == "CLIP" else 0.1)
    told = run_study(file, "--dry-run").stdout
    for arm, why in (
        ("CLIP", "started with lr=0.001, not 0.004"),
        ("DiffCLIP", "put through the suite brief, not scenes"),
    ):
        assert f"trained anew: 2 finished runs {why} (models/{arm}-s0, models/{arm}-s1)" in told
    assert "left out" not in told
    write_finished(study, sweep_runs(study)[-1], tmp_path / "out", 0.95)
    dry = json.loads(run_study(file, "--dry-run", "--json").stdout)
    assert dry["repeats"] == {"CLIP-as-DiffCLIP": "CLIP"}
    assert (dry["total"], dry["done"]) == (10, 6)
    told = run_study(file, "--dry-run").stdout
    assert "CLIP-as-DiffCLIP is left out: with these settings it is CLIP, whose runs it would repeat" in told


def test_models_wait_for_the_sweep(study_file: Callable[..., Path], run_study: Callable[..., Any]) -> None:
    ended = run_study(study_file(), "--only", "models")
    assert ended.returncode == 2
    assert "the sweep is not finished (CLIP" in ended.stderr


def test_a_dry_run_estimates_from_what_is_finished(
    study_file: Callable[..., Path], run_study: Callable[..., Any], tmp_path: Path
) -> None:
    file = study_file()
    study = read_study(file)
    for planned in sweep_runs(study)[:3]:
        write_finished(study, planned, tmp_path / "out", 0.5)
    ended = run_study(file, "--workers", 2, "--dry-run")
    assert ended.returncode == 0, ended.stderr
    assert "3 of 8 runs are finished; the others take about 2 min, 2 at a time on cpu" in ended.stdout
    rows = json.loads(run_study(file, "--dry-run", "--json").stdout)["groups"]
    assert [(row["arm"], row["runs"], row["done"]) for row in rows[:2]] == [
        ("CLIP", 2, 2),
        ("DiffCLIP", 2, 1),
    ]


def test_when_its_time_is_over_a_study_saves_and_says_how_to_go_on(
    study_file: Callable[..., Path], run_study: Callable[..., Any]
) -> None:
    file = study_file(change={"epochs": 100_000}, sweep=None, models={**STUDY["models"], "seeds": [0]})
    ended = run_study(file, "--minutes", 0.02)
    assert ended.returncode == 0, ended.stderr
    assert "0 of 2 runs done, the same command goes on" in ended.stdout
    assert "models/CLIP-s0: stopped, to be gone on with" in ended.stderr
    assert "DiffCLIP-s0" not in ended.stderr


def test_no_run_is_begun_that_would_not_end_in_time(
    study_file: Callable[..., Path], run_study: Callable[..., Any], tmp_path: Path
) -> None:
    file = study_file()
    study = read_study(file)
    write_finished(study, sweep_runs(study)[0], tmp_path / "out", 0.5)  # took a minute
    ended = run_study(file, "--minutes", 0.5, "--json")
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert (summary["done"], summary["total"], summary["stopped"]) == (1, 8, "time")
    assert "started" not in ended.stderr

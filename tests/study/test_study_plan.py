"""Which runs a study has, in which order, with which settings; and how long they take."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_study import ABLATIONS, write_finished

from diffclip.errors import InputError
from diffclip.study.choose import choose, trials
from diffclip.study.folder import check_study_folder, claim_study, diverged_at, is_finished, misfit
from diffclip.study.pace import Pace
from diffclip.study.plan import Settings, all_runs, grid_runs, repeats, sweep_runs
from diffclip.study.recipe import read_study


def test_runs_come_seed_by_seed_and_arms_take_the_settings_of_their_kind(
    study_file: Callable[..., Path],
) -> None:
    study = read_study(study_file(ablations=ABLATIONS))
    chosen = {"CLIP": Settings(0.25, 0.5), "DiffCLIP": Settings(0.125, 0.0)}
    runs = grid_runs(study, chosen)
    assert [str(run) for run in runs] == [
        *("models/CLIP-s0", "models/DiffCLIP-s0", "models/CLIP-s1", "models/DiffCLIP-s1"),
        "ablations/DiffCLIP-no-norm-s0",
    ]
    assert [run.change["lr"] for run in runs] == [0.25, 0.125, 0.25, 0.125, 0.125]
    assert all_runs(study, ["ablations"])[0].name == "DiffCLIP-no-norm-s0"


def test_an_arm_can_take_the_settings_of_the_other_sweep(study_file: Callable[..., Path]) -> None:
    arms = {
        "CLIP-slow": {"change": {"model": "CLIP"}, "settings": "DiffCLIP", "factor": "lr", "against": "CLIP"}
    }
    study = read_study(study_file(ablations={"seeds": [0], "suite": "brief", "arms": arms}))
    runs = grid_runs(study, {"CLIP": Settings(0.25, 0.5), "DiffCLIP": Settings(0.125, 0.0)})
    assert (runs[-1].arm, runs[-1].change["lr"], runs[-1].change["weight_decay"]) == ("CLIP-slow", 0.125, 0.0)


def test_an_arm_that_would_repeat_anothers_runs_is_left_out(study_file: Callable[..., Path]) -> None:
    settings = {"change": {"model": "CLIP"}, "settings": "DiffCLIP", "factor": "lr", "against": "CLIP"}
    fixed = {
        "change": {"model": "CLIP", "init": "published", "lr": 0.5, "weight_decay": 0.5},
        **{"factor": "lr", "against": "CLIP"},
    }
    ablations = {"seeds": [0], "suite": "brief", "arms": {"as-DiffCLIP": settings, "fixed": fixed}}
    study = read_study(study_file(ablations=ablations))
    one, other, third = Settings(0.25, 0.5), Settings(0.125, 0.5), Settings(0.5, 0.5)
    for clip, diffclip, repeated in (
        (one, other, {}),
        (one, one, {"as-DiffCLIP": "CLIP"}),
        (third, other, {"fixed": "CLIP"}),
        (one, third, {"fixed": "as-DiffCLIP"}),
        (third, third, {"as-DiffCLIP": "CLIP", "fixed": "CLIP"}),
    ):
        chosen = {"CLIP": clip, "DiffCLIP": diffclip}
        assert repeats(study, chosen) == repeated
        arms = {run.arm for run in grid_runs(study, chosen)}
        assert arms == {"CLIP", "DiffCLIP", "as-DiffCLIP", "fixed"} - repeated.keys()
    assert repeats(study, {}) == {}  # nobody knows yet
    assert repeats(read_study(study_file(ablations=ablations, sweep=None)), {}) == {"as-DiffCLIP": "CLIP"}


def test_the_sweep_chooses_for_each_arm_and_not_before_it_is_finished(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    study = read_study(study_file())
    runs = sweep_runs(study)
    for run, score in zip(runs, (0.1, 0.4, 0.3, 0.2), strict=True):
        with pytest.raises(InputError, match="the sweep is not finished"):
            choose(study, tmp_path / "out")
        write_finished(study, run, tmp_path / "out", score)
    assert [run.arm for run in runs] == ["CLIP", "DiffCLIP", "CLIP", "DiffCLIP"]
    assert choose(study, tmp_path / "out") == {"CLIP": Settings(2e-3, 0.1), "DiffCLIP": Settings(1e-3, 0.1)}


def test_a_run_that_diverged_is_finished_and_never_chosen(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    study = read_study(study_file())
    runs = sweep_runs(study)
    for run in runs:
        write_finished(study, run, tmp_path, 0.5)
    folder = write_finished(study, runs[0], tmp_path, 0.9, diverged=7)
    (folder / "validation.jsonl").unlink()
    assert is_finished(study, runs[0], tmp_path)
    assert [diverged_at(tmp_path / str(run)) for run in runs] == [7, None, None, None]
    assert [trial.score for trial in trials(study, tmp_path)] == [-math.inf, 0.5, 0.5, 0.5]
    assert choose(study, tmp_path) == {"CLIP": Settings(2e-3, 0.1), "DiffCLIP": Settings(1e-3, 0.1)}
    assert Pace.of_finished(study, runs[:1], tmp_path).seconds("sweep") is None
    write_finished(study, runs[2], tmp_path, 0.9, diverged=1)
    with pytest.raises(InputError, match=r"every run of CLIP in the sweep diverged: .*lower rates"):
        choose(study, tmp_path)


def test_a_run_of_other_settings_or_another_suite_is_not_finished(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    study = read_study(study_file())
    run = grid_runs(study, {})[0]
    assert not is_finished(study, run, tmp_path)
    folder = write_finished(study, run, tmp_path, 0.5)
    assert is_finished(study, run, tmp_path)
    other = read_study(study_file(change={"epochs": 3}))
    assert not is_finished(other, grid_runs(other, {})[0], tmp_path)
    assert misfit(other, grid_runs(other, {})[0], tmp_path) == "started with epochs=2, not 3"
    for costs, told in (
        ({"data": "flickr8k", "scenes": None}, None),
        ({"data": "flickr30k", "scenes": None}, 'trained on data "flickr30k", not "flickr8k"'),
        ({"data": "flickr8k", "scenes": {"train": 9}}, 'trained on scenes {"train": 9}, not null'),
    ):
        write_finished(study, run, tmp_path, 0.5, **costs)
        assert misfit(study, run, tmp_path) == told
        assert is_finished(study, run, tmp_path) is (told is None)
    cost = json.loads((folder / "cost.json").read_text())
    (folder / "cost.json").write_text(json.dumps({**cost, "suite": "quick"}))
    assert not is_finished(study, run, tmp_path)
    (folder / "cost.json").write_text("{")
    assert not is_finished(study, run, tmp_path)


def test_a_folder_of_another_study_is_refused_with_the_key_and_the_way_out(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    half = out / "models" / ".12345678.tmp"
    half.mkdir(parents=True)
    claim_study(read_study(study_file()), out)
    assert not half.exists()
    claim_study(read_study(study_file()), out)
    other = read_study(study_file(change={"epochs": 7}))
    with pytest.raises(InputError, match=r"holds a study with change.epochs=null, not 7: .*--output"):
        check_study_folder(other, out)
    for changes, told in (
        ({"title": "Other", "data": "flickr30k"}, 'data="flickr8k", not "flickr30k"'),
        ({"scenes": {"train": 8, "val": 8, "size": 32}}, "scenes=null, not "),
        ({"change": {"data.flip": 0.5}}, r"change.data.flip=null, not 0.5"),
    ):
        # removing study.yaml would not tell the runs apart
        with pytest.raises(InputError, match=rf"{told}.*: choose another --output and other --runs") as error:
            check_study_folder(read_study(study_file(**changes)), out)
        assert "remove" not in str(error.value)
    (out / "study.yaml").write_text("models: [")
    with pytest.raises(InputError, match="cannot be read: remove it"):
        check_study_folder(other, out)


def test_the_pace_is_the_median_of_what_finished_runs_cost_and_for_other_groups_that_of_the_longest(
    study_file: Callable[..., Path], tmp_path: Path
) -> None:
    study = read_study(study_file(ablations=ABLATIONS))
    assert Pace.of_finished(study, sweep_runs(study), tmp_path).seconds_of(["sweep"], workers=1) is None
    for planned, seconds in zip(sweep_runs(study), (10.0, 30.0, 20.0), strict=False):
        folder = write_finished(study, planned, tmp_path, 0.1)
        (folder / "cost.json").write_text(
            json.dumps({"seconds": seconds, "suite": None, "suite_seconds": None})
        )
    pace = Pace.of_finished(study, sweep_runs(study), tmp_path)
    assert (pace.seconds("sweep"), pace.seconds("models")) == (20, 20)
    model = grid_runs(study, {})[0]
    write_finished(study, model, tmp_path, 0.1)  # of a minute, and half of one for its suite
    pace.add(model)
    assert (pace.seconds("sweep"), pace.seconds("models"), pace.seconds("ablations")) == (20, 90, 90)
    assert pace.seconds_of(["sweep", "sweep", "models"], workers=2) == 65
    assert pace.seconds_of([], workers=1) == 0

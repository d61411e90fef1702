"""Run folders read back, also of runs that go, were killed and resumed."""

from __future__ import annotations

import json
import time

import pytest
from run_folders import make_run

from diffclip.errors import InputError
from diffclip.report.page import run_facts
from diffclip.training.run_folder import curve_of, read_run, run_folders


def about(run, **start):
    (run / "about.json").write_text(json.dumps({"starts": [{"time": 0.0, "step": 0, "steps": 40, **start}]}))


@pytest.mark.parametrize(
    ("start", "silent", "state"),
    [
        ({}, 0, "finished"),
        ({"steps": 80}, 3600, "stopped"),
        ({"steps": 80, "ended": {"step": 40, "how": "SIGTERM", "time": 1.0}}, 0, "stopped"),
        ({"steps": 80}, 0, "going"),
    ],
)
def test_a_run_goes_has_stopped_or_is_finished(tmp_path, start, silent, state):
    run = make_run(tmp_path / "run")
    about(run, **start)
    assert read_run(run).state(time.time() + silent) == state


def test_the_facts_tell_progress_machine_and_starts(tmp_path):
    run = make_run(tmp_path / "run")
    about(run, steps=80, command="diffclip train x", machine={"name": "node1"}, gpus=[{"name": "H200"}] * 2)
    facts = dict(run_facts(read_run(run)))
    assert facts["step"] == "40 of 80 (50 %)"
    assert facts["rate"] == "80 samples per second, 2 % of the time waiting for data"
    assert (facts["machine"], facts["GPUs"], facts["command"]) == (
        "name node1",
        "2 × H200",
        "diffclip train x",
    )


def test_a_curve_is_thinned_and_names_the_towers(tmp_path):
    curve = curve_of(make_run(tmp_path / "DiffCLIP-s1", seed=1), points=10)
    assert len(curve["step"]) == 10
    assert (curve["arm"], curve["seed"]) == ("DiffCLIP", 1)
    assert {tower: len(rows[0]) for tower, rows in curve["lambda"].items()} == {"vision": 3, "text": 2}
    assert curve["validation"]["step"] == [20, 40]
    assert curve_of(make_run(tmp_path / "CLIP-s1", "CLIP"))["lambda"] == {}


def test_run_folders_are_found_two_levels_down(tmp_path):
    make_run(tmp_path / "models" / "CLIP-s0", "CLIP")
    (tmp_path / "models" / "empty").mkdir()
    assert run_folders(tmp_path) == [tmp_path / "models" / "CLIP-s0"]


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has no recipe.yaml: give the folder of a run"):
        read_run(tmp_path)
    run = make_run(tmp_path / "run")
    (run / "metrics.jsonl").write_text("{")
    with pytest.raises(InputError, match="has no complete step yet"):
        read_run(run)

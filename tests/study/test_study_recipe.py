"""What a study's file may say, and what it is told when it says something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_study import ABLATIONS

from diffclip.errors import InputError
from diffclip.study.plan import all_runs
from diffclip.study.recipe import check_arms, read_study, to_yaml
from diffclip.training.recipe import read_recipe

BUILT_IN = ("study_cpu", "study_gpu", "study_scenes_gpu")


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_studies_that_come_with_the_package_read_and_plan(name: str, tmp_path: Path) -> None:
    study = read_study(name)
    runs = all_runs(study)
    assert len({str(run) for run in runs}) == len(runs)
    assert {run.group for run in runs} >= {"sweep", "models"}
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(study))
    assert read_study(again) == study
    check_arms(study)


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_first_lines_of_a_study_say_what_why_and_how_much(name: str) -> None:
    file = Path(__file__).parents[2] / "recipes" / "study" / f"{name}.yaml"
    head = "".join(line for line in file.read_text().splitlines(True) if line.startswith("#"))
    places = [head.find(f"# {word}: ") for word in ("Answers", "Command", "Cost")]
    assert places[0] == 0
    assert -1 not in places
    assert places == sorted(places)
    assert name in head


def test_a_gpus_study_has_the_arms_of_the_cpus() -> None:
    cpu, gpu = read_study("study_cpu"), read_study("study_gpu")
    assert list(cpu.arms) == list(gpu.arms)
    assert len(gpu.models.seeds) == 5


def test_without_ablations_no_model_is_against_one() -> None:
    assert read_study("study_gpu").arms["DiffCLIP"].against == "DiffCLIP-no-factor"
    without = read_study("study_gpu", ["ablations=null"]).arms["DiffCLIP"]
    assert (without.factor, without.against) == (None, None)


AGAINST_NONE = {"change": {"model": "DiffCLIP-bare"}, "factor": "x", "against": "CLUP"}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"modles": 1}, "did you mean 'models'"),
        ({"recipe": "flickr8k_cpo"}, "did you mean 'flickr8k_cpu'"),
        ({"ablations": {**ABLATIONS, "arms": {"bare": AGAINST_NONE}}}, "arm bare is against 'CLUP'"),
        ({"change": {"epoch": 3}}, "unknown recipe key 'epoch'"),
        ({"sweep": {"lr": [1e-3], "weight_decay": [0.1], "seed": 1}}, "sweep.seed 1 is a reported seed too"),
    ],
)
def test_a_wrong_study_is_told_in_a_line(
    study_file: Callable[..., Path], changes: dict[str, Any], told: str
) -> None:
    with pytest.raises(InputError, match=told):
        read_study(study_file(**changes))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"model": "DiffCLIB"}, "arm DiffCLIP: unknown model 'DiffCLIB': did you mean 'DiffCLIP'"),
        ({"model": "DiffCLIP", "architecture.vision.heads": 3}, "arm DiffCLIP: .*heads 3"),
        ({"model": "DiffCLIP", "init": "machted"}, "arm DiffCLIP: unknown init 'machted'"),
    ],
)
def test_an_arm_that_cannot_be_trained_is_named(
    study_file: Callable[..., Path], change: dict[str, Any], told: str
) -> None:
    file = study_file()
    with pytest.raises(InputError, match=told):
        read_study(file, [f"models.arms.DiffCLIP.change={yaml.safe_dump(change, default_flow_style=True)}"])


@pytest.mark.parametrize(
    ("twin", "of"),
    [
        ({"change": {"model": "CLIP", "init": "published"}}, "CLIP"),
        ({"change": {"model": "DiffCLIP"}}, "DiffCLIP"),
        ({"change": {"model": "DiffCLIP", "lr": 0.0007}}, None),
        (
            {"change": {"model": "DiffCLIP", "lr": 0.0005}},
            None,
        ),  # the recipe's, which the sweep may not choose
        ({"change": {"model": "CLIP"}, "settings": "DiffCLIP"}, None),
    ],
)
def test_two_arms_are_two_models_whatever_the_sweep_chooses(
    study_file: Callable[..., Path], twin: dict[str, Any], of: str | None
) -> None:
    arms = {"CLIP": {"change": {"model": "CLIP"}}, "DiffCLIP": {"change": {"model": "DiffCLIP"}}}
    study = read_study(study_file(models={"seeds": [0], "suite": "brief", "arms": {**arms, "twin": twin}}))
    if of is None:
        check_arms(study)
    else:
        with pytest.raises(InputError, match=f"arms {of} and twin are one and the same"):
            check_arms(study)


def test_what_is_no_study_and_what_is_no_recipe_say_so(study_file: Callable[..., Path]) -> None:
    with pytest.raises(InputError, match="unknown recipe 'study_gpo': did you mean 'study_gpu'"):
        read_study("study_gpo")
    with pytest.raises(InputError, match="is no study: it has no models"):
        read_study("flickr8k_cpu")
    with pytest.raises(InputError, match=r"is a study: .*diffclip study"):
        read_recipe("study_cpu")

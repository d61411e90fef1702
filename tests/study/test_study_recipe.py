"""The file of a study: what it may say, and the error when it says something else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny_study import ABLATIONS, STUDY

from diffclip.errors import InputError
from diffclip.study.plan import plan
from diffclip.study.recipe import read_study, to_yaml
from diffclip.training.recipe import read_recipe


@pytest.mark.parametrize("name", ["study_a", "study_b", "study_a_gpu", "study_b_gpu", "study_cpu"])
def test_the_studies_of_the_package_read_plan_and_say_what_they_answer(name: str, tmp_path: Path) -> None:
    study = read_study(name)
    runs = plan(study, {})[0]
    assert len({run.name for run in runs}) == len(runs)
    assert {run.group for run in runs} >= {"sweep", "models"}
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(study))
    assert read_study(again) == study
    file = Path(__file__).parents[2] / "recipes" / "study" / f"{name}.yaml"
    head = "".join(line for line in file.read_text().splitlines(True) if line.startswith("#"))
    places = [head.find(f"# {word}: ") for word in ("Answers", "Command", "Cost")]
    assert places[0] == 0
    assert places == sorted(places)


def test_primary_comparison_and_contrasts_are_filled_in_or_declared(study_file: Callable[..., Path]) -> None:
    study = read_study(study_file(ablations=ABLATIONS))
    primary = study.primary
    assert (primary.arm, primary.against) == ("DiffCLIP", "CLIP")
    assert (primary.task, primary.metric, primary.dataset) == ("validation", "score", "flickr8k")
    assert study.margin == 0.01
    assert study.contrasts == [("DiffCLIP", "CLIP"), ("DiffCLIP-no-norm", "DiffCLIP")]
    changes = ["primary.metric=acc1", "margin=0.02", "contrasts=[[CLIP, DiffCLIP]]"]
    declared = read_study(study_file(), changes)
    assert (declared.primary.metric, declared.margin) == ("acc1", 0.02)
    assert declared.contrasts == [("CLIP", "DiffCLIP")]


def test_without_ablations_no_model_is_against_one() -> None:
    assert read_study("study_cpu").arms["DiffCLIP"].against == "DiffCLIP-no-factor"
    assert read_study("study_cpu", ["ablations=null"]).arms["DiffCLIP"].against is None


def test_an_arm_takes_the_settings_of_its_kind_of_attention(study_file: Callable[..., Path]) -> None:
    arms = ("CLIP-gated", "CLIP-registers", "DiffCLIP-v2", "DiffCLIP-vision")
    study = read_study(study_file(**_arms(**{arm: {"change": {"model": arm}} for arm in arms})))
    assert [study.tuned_as(arm) for arm in arms] == ["CLIP", "CLIP", "DiffCLIP", "DiffCLIP"]


def _arms(**arms: dict[str, Any]) -> dict[str, Any]:
    return {"models": {**STUDY["models"], "arms": {**STUDY["models"]["arms"], **arms}}}  # type: ignore[dict-item]


BARE = {"model": "DiffCLIP-bare"}
SWEEP: dict[str, Any] = {"lr": [1e-3], "weight_decay": [0.1], "seeds": [9]}


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"modles": 1}, "did you mean 'models'"),
        (
            {"ablations": {**ABLATIONS, "arms": {"bare": {"change": BARE, "against": "CLUP"}}}},
            "arm bare is against 'CLUP', which is no arm",
        ),
        ({"primary": {"arm": "DiffCLOP"}}, "primary.arm is 'DiffCLOP', which is no arm"),
        ({"contrasts": [["DiffCLIP", "CLUP"]]}, r"contrasts\[0\] has 'CLUP'"),
        ({"change": {"epoch": 3}}, "unknown recipe key 'epoch'"),
        ({"sweep": SWEEP | {"seeds": [1]}}, "contain a seed of models or ablations"),
        (
            {"sweep": SWEEP | {"arms": ["CLIP"]}},
            "arm DiffCLIP has no settings: add it or DiffCLIP to sweep.arms",
        ),
        (_arms(x={"change": {"model": "DiffCLIB"}}), "arm x: unknown model 'DiffCLIB'"),
    ],
)
def test_a_wrong_study_is_refused_in_a_line(study_file, changes: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told) as error:
        read_study(study_file(**changes))
    assert "\n" not in str(error.value)


def test_what_is_no_study_and_what_is_no_recipe_say_so() -> None:
    with pytest.raises(InputError, match="unknown recipe 'study_cpo': did you mean 'study_cpu'"):
        read_study("study_cpo")
    with pytest.raises(InputError, match="is not a study, as it has no `models`"):
        read_study("flickr8k_cpu")
    with pytest.raises(InputError, match="use `diffclip study`"):
        read_recipe("study_cpu")

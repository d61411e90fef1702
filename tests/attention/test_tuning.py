"""Measured plans: the file that keeps them between runs."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from diffclip.attention.kernels import plan, tuning
from diffclip.attention.kernels.plan import Blocks, Plan, Problem

PROBLEM = Problem(197, 64, 128, 2, False)
PLAN = Plan(Blocks(128, 0, 8, 1), Blocks(64, 32, 4, 2), Blocks(16, 64, 4, 3))
X = SimpleNamespace(device=torch.device("cuda"))


@pytest.fixture(autouse=True)
def file(cache_home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of the plans of a GPU that is not there."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200 (80/GB)")
    properties = SimpleNamespace(shared_memory_per_block_optin=232_448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    return tuning.plan_file(X.device)


def test_what_is_kept_is_found_again_and_only_for_its_problem(file: Path, cache_home: Path) -> None:
    assert file.parent == cache_home / "diffclip" / "kernels"
    assert "_NVIDIA-H200-80-GB_triton-" in file.name
    assert tuning.cached(PROBLEM, X, X) is None
    other, better = Problem(77, 64, 128, 2, True), replace(PLAN, forward=Blocks(64, 32, 4, 3))
    for problem, kept in ((PROBLEM, PLAN), (other, PLAN), (PROBLEM, better)):
        tuning.keep(problem, kept, file)
        assert tuning.cached(problem, X, X) == kept
    assert tuning.cached(other, X, X) == PLAN
    assert len(json.loads(file.read_text())) == 2
    for change in ({"tokens": 196}, {"value": 64}, {"bytes": 4}, {"causal": True}):
        assert tuning.cached(replace(PROBLEM, **change), X, X) is None
    # one that is no candidate any more is not taken
    tuning.keep(PROBLEM, replace(PLAN, keys=Blocks(48, 64, 4, 2)), file)
    assert tuning.cached(PROBLEM, X, X) is None


def test_a_search_in_which_every_candidate_fails_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> float:
        raise RuntimeError("out of resource")

    monkeypatch.setattr(tuning, "time_pass", fail)
    assert tuning.search(PROBLEM, X, X) is None


def test_a_search_leaves_the_random_numbers_of_a_run_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    q, v = torch.zeros(1, 2, 20, 16), torch.zeros(1, 1, 20, 16)
    monkeypatch.setattr(tuning.launch, "forward", lambda *arguments: (q, v))
    monkeypatch.setattr(tuning.triton.testing, "do_bench", lambda work, *times, **named: 1.0)
    before = torch.get_rng_state()
    tuning.time_pass("keys", PLAN, Problem(20, 16, 16, 4, False), q, v)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("damage", [b"{", b'{"a": {"sideways": {"rows": 1}}}', b"\xff\xfe\x00"])
def test_a_damaged_file_holds_nothing_and_is_written_anew(file: Path, damage: bytes) -> None:
    file.parent.mkdir(parents=True)
    file.write_bytes(damage)
    assert tuning.cached(PROBLEM, X, X) is None
    tuning.keep(PROBLEM, PLAN, file)
    assert tuning.cached(PROBLEM, X, X) == PLAN


def test_a_folder_that_cannot_be_written_costs_a_warning(
    file: Path, cache_home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (cache_home / "diffclip").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        tuning.keep(PROBLEM, PLAN, file)
    assert len(caplog.records) == 1
    assert "the measured kernel plan is not kept" in caplog.text
    assert tuning.cached(PROBLEM, X, X) is None


def test_plans_are_looked_for_once_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[object] = []
    monkeypatch.setattr(tuning, "cached", lambda *arguments: looked.append(arguments))
    monkeypatch.setattr(plan, "_plans", {})
    monkeypatch.setattr(plan, "_properties", torch.cuda.get_device_properties)
    with FakeTensorMode():
        q, v = (torch.empty(1, heads, 8, 16, device="cuda:0") for heads in (2, 1))
        found = [plan.plan_for(q, v, False) for _ in range(3)]
    assert len(looked) == 1
    assert found == [plan.table_plan(plan.problem_of(q, v, False))] * 3

"""Measured plans: the file that keeps them between runs."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from diffclip.attention.kernels import tuning
from diffclip.attention.kernels.plan import Blocks, Plan, Problem

PROBLEM = Problem(197, 64, 128, 2, False)
PLAN = Plan(Blocks(128, 0, 8, 1), Blocks(64, 64, 4, 2), Blocks(16, 64, 4, 2))


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200 (80/GB)")
    properties = SimpleNamespace(shared_memory_per_block_optin=232_448)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    tuning.cached.cache_clear()
    yield
    tuning.cached.cache_clear()


def test_a_file_for_each_gpu_in_the_users_cache(tmp_path: Path) -> None:
    file = tuning.plan_file(torch.device("cuda"))
    assert file.parent == tmp_path / "diffclip" / "kernels"
    assert "_NVIDIA-H200-80-GB_triton-" in file.name
    assert file.suffix == ".json"


def test_what_is_kept_is_found_again_and_only_for_its_problem() -> None:
    device = torch.device("cuda")
    assert tuning.cached(PROBLEM, device) is None
    tuning.keep(PROBLEM, PLAN, tuning.plan_file(device))
    assert tuning.cached(PROBLEM, device) == PLAN
    for other in (
        Problem(196, 64, 128, 2, False),
        Problem(197, 32, 128, 2, False),
        Problem(197, 64, 64, 2, False),
        Problem(197, 64, 128, 4, False),
        Problem(197, 64, 128, 2, True),
    ):
        assert tuning.cached(other, device) is None
    tuning.cached.cache_clear()  # another process
    assert tuning.cached(PROBLEM, device) == PLAN
    # nothing is searched for that is known
    assert tuning.tuned(PROBLEM, torch.empty(0), torch.empty(0)) == PLAN


def test_plans_are_added_and_replaced() -> None:
    device = torch.device("cuda")
    file = tuning.plan_file(device)
    other, better = Problem(77, 64, 128, 2, True), Plan(Blocks(64, 32, 4, 2), PLAN.rows, PLAN.keys)
    tuning.keep(PROBLEM, PLAN, file)
    tuning.keep(other, PLAN, file)
    tuning.keep(PROBLEM, better, file)
    assert tuning.cached(PROBLEM, device) == better
    assert tuning.cached(other, device) == PLAN
    assert len(json.loads(file.read_text())) == 2
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_what_a_search_finds_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    searched = []

    def search(*arguments: object) -> Plan:
        searched.append(arguments)
        return PLAN

    monkeypatch.setattr(tuning, "search", search)
    x = torch.empty(0)
    assert [tuning.tuned(PROBLEM, x, x) for _ in range(2)] == [PLAN, PLAN]
    assert len(searched) == 1


@pytest.mark.parametrize(
    "damage",
    [
        "",
        "{",
        "[]",
        "7",
        "null",
        '{"a": 1}',
        '{"a": {"forward": 3}}',
        '{"a": {"forward": {"rows": 1}}}',
        '{"a": {"forward": {"rows": 1, "columns": 2, "warps": 4, "stages": 1}}}',
        '{"a": {"sideways": {"rows": 1, "columns": 2, "warps": 4, "stages": 1}}}',
        b"\xff\xfe\x00",
    ],
)
def test_a_damaged_file_holds_nothing_and_is_written_anew(damage: str | bytes) -> None:
    device = torch.device("cuda")
    file = tuning.plan_file(device)
    file.parent.mkdir(parents=True)
    file.write_bytes(damage if isinstance(damage, bytes) else damage.encode())
    assert tuning.cached(PROBLEM, device) is None
    tuning.keep(PROBLEM, PLAN, file)
    assert tuning.cached(PROBLEM, device) == PLAN


def test_a_folder_that_cannot_be_written_costs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "diffclip").write_text("a file where the folder should be")
    with caplog.at_level(logging.WARNING):
        tuning.keep(PROBLEM, PLAN, tuning.plan_file(torch.device("cuda")))
    assert len(caplog.records) == 1
    assert "the measured kernel plan is not kept" in caplog.text
    assert tuning.cached(PROBLEM, torch.device("cuda")) is None


def test_a_plan_that_is_no_candidate_any_more_is_not_taken() -> None:
    device = torch.device("cuda")
    tuning.keep(PROBLEM, Plan(PLAN.forward, PLAN.rows, Blocks(48, 64, 4, 2)), tuning.plan_file(device))
    assert tuning.cached(PROBLEM, device) is None

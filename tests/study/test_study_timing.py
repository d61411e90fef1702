"""A step of every arm, timed in turns: what is measured, and the file that is left."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_study import ABLATIONS, RECIPE

from diffclip.errors import InputError
from diffclip.study import timing
from diffclip.study.one import Place
from diffclip.study.recipe import read_study
from diffclip.study.step import Step, make_batch
from diffclip.study.timing import TIMING_FILE, ArmTime, _arm_time, _left_out, read_timing, time_arms
from diffclip.training.recipe import parse_recipe

ARM = {"milliseconds": 20.0, "ratio": 1.1, "low": 1.0, "high": 1.2, "peak_memory": None}
FILE = {"device": "x", "threads": 1, "torch": "2", "rounds": 3, "batch_size": 8, "arms": {"CLIP": ARM}}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "out").mkdir()
    return Place(
        data=tmp_path / "data",
        runs=tmp_path / "runs",
        output=tmp_path / "out",
        device="cpu",
        side_by_side=1,
        condense=lambda run, to, size: None,
        attention_backend="eager",
    )


def test_all_arms_take_turns_and_leave_a_file(study_file: Callable[..., Path], place: Place) -> None:
    study = read_study(study_file(ablations=ABLATIONS))
    assert read_timing(place.output) is None
    torch.set_num_threads(2)
    try:
        found = time_arms(study, place, threads=1, seconds=0.0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(1)
    assert list(found.arms) == ["CLIP", "DiffCLIP", "DiffCLIP-no-norm"]
    assert (found.rounds, found.threads, found.batch_size) == (3, 1, 16)
    assert found.device
    assert found.torch == torch.__version__
    for arm in found.arms.values():
        assert arm.milliseconds > 0
        assert 0 < arm.low <= arm.ratio <= arm.high
        assert arm.peak_memory is None
    clip = found.arms["CLIP"]
    assert (clip.low, clip.ratio, clip.high) == (1.0, 1.0, 1.0)
    assert read_timing(place.output) == found
    assert [file.name for file in place.output.iterdir()] == [TIMING_FILE]


def test_rounds_go_on_as_long_as_one_more_would_end_in_time(
    study_file: Callable[..., Path], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = itertools.count()  # a clock that is a second on at each look; a round looks twice, or three times
    monkeypatch.setattr(timing, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    assert time_arms(read_study(study_file()), place, threads=1, seconds=12.0).rounds == 5


@pytest.mark.parametrize("change", [{}, {"micro_batch": 4}, {"clip_grad_norm": 0.1}, {"precision": "bf16"}])
def test_a_step_trains(change: dict[str, Any]) -> None:
    recipe = parse_recipe({**RECIPE, **change}, "tiny")
    batch = make_batch(16, 16, 24, 49408, torch.device("cpu"))
    assert batch[0].dtype == torch.uint8
    step = Step(recipe, torch.device("cpu"), batch)
    before = {name: weights.clone() for name, weights in step.model.named_parameters()}
    step()
    assert all(not torch.equal(weights, before[name]) for name, weights in step.model.named_parameters())
    assert all(weights.grad is None for weights in step.model.parameters())


def test_ratios_are_within_rounds() -> None:
    """A machine that gets slower from round to round changes no ratio."""
    moods = ((1, 12), (2, 13), (4, 11))
    rounds: list[dict[str, tuple[float, int | None]]] = [
        {"CLIP": (slow * 10.0, 5), "A": (slow * float(own), 7)} for slow, own in moods
    ]
    assert _arm_time("A", rounds) == ArmTime(26.0, 1.2, 1.1, 1.3, 7)


def test_the_interval_of_a_median_holds_95_percent() -> None:
    assert [_left_out(rounds) for rounds in (3, 6, 8, 9, 20, 2000)] == [0, 0, 0, 1, 5, 955]
    for rounds in range(6, 40):
        outside = _left_out(rounds)
        tails = [
            2 * sum(math.comb(rounds, k) for k in range(n)) / 2**rounds for n in (outside + 1, outside + 2)
        ]
        assert tails[0] <= 0.05 < tails[1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "JSON"),
        ("[]", "timing.json cannot be read"),
        (json.dumps({**FILE, "rounds": "many"}), "rounds"),
        (json.dumps({**FILE, "arms": {"CLIP": {**ARM, "ratio": float("nan")}}}), "arms.CLIP.ratio"),
        (json.dumps({key: value for key, value in FILE.items() if key != "device"}), "device"),
    ],
)
def test_a_broken_file_is_told_in_a_line(content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / TIMING_FILE).write_text(json.dumps(FILE))
    assert read_timing(tmp_path) is not None
    (tmp_path / TIMING_FILE).write_text(content)
    with pytest.raises(InputError, match=said) as raised:
        read_timing(tmp_path)
    assert "\n" not in str(raised.value)


def test_a_file_that_cannot_be_written_is_told_before_measuring(
    study_file: Callable[..., Path], place: Place
) -> None:
    (place.output / TIMING_FILE).mkdir()
    with pytest.raises(InputError, match=TIMING_FILE):
        time_arms(read_study(study_file()), place, threads=1, seconds=1e6)

"""A step of every arm, timed in turns: the measurement, and the file that is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_study import ABLATIONS

from diffclip.errors import InputError
from diffclip.study.recipe import read_study
from diffclip.study.runs import TIMING_FILE, read_timing
from diffclip.study.timing import time_arms, time_of


def test_all_arms_take_turns_and_leave_a_file(study_file: Callable[..., Path], tmp_path: Path) -> None:
    study = read_study(study_file(ablations=ABLATIONS, change={"precision": "bf16"}))
    assert read_timing(tmp_path) == {}
    threads = torch.get_num_threads()
    found = time_arms(study, tmp_path, "cpu", threads=1, seconds=0.0)
    assert torch.get_num_threads() == threads
    assert list(found["arms"]) == ["CLIP", "DiffCLIP", "DiffCLIP-no-norm"]
    assert (found["rounds"], found["threads"], found["batch_size"]) == (3, 1, 16)
    for arm in found["arms"].values():
        assert arm["milliseconds"] > 0
        assert 0 < arm["low"] <= arm["ratio"] <= arm["high"]
    assert [found["arms"]["CLIP"][key] for key in ("low", "ratio", "high")] == [1, 1, 1]
    assert read_timing(tmp_path) == found["arms"]


def test_ratios_are_taken_within_rounds_with_the_interval_of_a_median() -> None:
    """A machine that gets slower from round to round changes no ratio."""
    found = time_of([12.0, 26.0, 44.0], baseline=[10.0, 20.0, 40.0])
    assert found == {"milliseconds": 26.0, "ratio": 1.2, "low": 1.1, "high": 1.3}
    # the interval of the median of 15 values goes from the 4th to the 12th (Conover 1999, section 3.2)
    fifteen = time_of([float(own) for own in range(15)], [1.0] * 15)
    assert [fifteen[key] for key in ("low", "ratio", "high")] == [3, 7, 11]


@pytest.mark.parametrize("content", ["", '{"rounds": 3}'])
def test_a_broken_file_is_told_in_a_line(content: str, tmp_path: Path) -> None:
    (tmp_path / TIMING_FILE).write_text(content)
    with pytest.raises(InputError, match=r"timing.json cannot be read: remove it"):
        read_timing(tmp_path)

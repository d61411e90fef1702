"""The step times of a study's arms: `benchmarks/step_times.py` writes them, and pages show them."""

import json
import sys

from tiny_study import STUDY

from benchmarks import step_times
from diffclip.study.results import read_timing


def test_each_arm_is_timed_relative_to_the_first(study_file, monkeypatch, tmp_path):
    file = study_file()
    monkeypatch.setattr(step_times, "ROUNDS", 3)
    monkeypatch.setattr(sys, "argv", ["step_times", str(file), "--device", "cpu", "--threads", "1"])
    step_times.main()
    arms = read_timing(tmp_path)
    assert list(arms) == list(STUDY["models"]["arms"])
    assert arms["CLIP"]["ratio"] == 1
    for times in arms.values():
        assert 0 < times["low"] <= times["ratio"] <= times["high"]
    assert json.loads((tmp_path / "timing.json").read_text())["rounds"] == 3


def test_the_interval_leaves_out_as_many_ratios_as_a_sign_test():
    times = [100.0 + number for number in range(15)]
    assert step_times.summarize(times, [100.0] * 15) == {
        "milliseconds": 107.0,
        "ratio": 1.07,
        "low": 1.03,
        "high": 1.11,
    }

"""Turns, budgets and summaries, without a look at how long anything took."""

from __future__ import annotations

import torch

from diffclip.benchmarking.timing import make_sampler, reason, summary, take_turns


def test_turns_alternate_after_a_round_that_is_not_counted() -> None:
    order: list[str] = []

    def sampler(name: str, value: float):
        def take() -> float:
            order.append(name)
            return value

        return take

    told: list[int] = []
    samples, failures = take_turns(
        {"a": sampler("a", 1.0), "b": sampler("b", 2.0)}, rounds=2, tell=lambda: told.append(1)
    )
    assert order == ["a", "b"] * 3
    assert samples == {"a": [1.0, 1.0], "b": [2.0, 2.0]}
    assert failures == {}
    assert len(told) == 3


def test_one_that_fails_is_left_out_with_the_reason() -> None:
    turns = iter([1.0, 1.0])

    def fails_in_the_third() -> float:
        try:
            return next(turns)
        except StopIteration:
            raise ValueError("no more\nof it") from None

    samples, failures = take_turns({"bad": fails_in_the_third, "good": lambda: 3.0}, rounds=4)
    assert samples == {"good": [3.0] * 4}
    assert failures == {"bad": "ValueError: no more"}


def test_a_spent_budget_still_leaves_three_samples() -> None:
    samples, _ = take_turns({"a": lambda: 1.0}, rounds=50, seconds=0.0)
    assert samples == {"a": [1.0] * 3}


def test_summary_is_the_median_and_the_quartiles() -> None:
    assert summary([5.0, 1.0, 3.0, 2.0, 4.0]) == {
        "median_ms": 3.0,
        "low_ms": 2.0,
        "high_ms": 4.0,
        "samples": 5,
    }
    assert summary([7.0]) == {"median_ms": 7.0, "low_ms": 7.0, "high_ms": 7.0, "samples": 1}


def test_a_sampler_calls_everything_and_gives_the_mean() -> None:
    called: list[int] = []
    sampler = make_sampler([lambda: called.append(0), lambda: called.append(1)], torch.device("cpu"))
    assert called == [0, 1]  # warmed up
    assert sampler() >= 0
    assert called == [0, 1, 0, 1]


def test_reasons_are_short() -> None:
    assert reason(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")) == "out of memory"
    assert reason(RuntimeError("\n\nfirst\nsecond")) == "RuntimeError: first"
    assert len(reason(RuntimeError("x" * 999))) == 200

"""Turns, budgets and summaries, without a look at how long anything took."""

from __future__ import annotations

from diffclip.benchmarking.timing import summary, take_turns


def test_turns_alternate_after_a_round_that_is_not_counted() -> None:
    order: list[str] = []
    samples, failures = take_turns(
        {name: lambda name=name: order.append(name) or 1.0 for name in "ab"}, rounds=2
    )
    assert order == ["a", "b"] * 3
    assert (samples, failures) == ({"a": [1.0, 1.0], "b": [1.0, 1.0]}, {})


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
    wanted = {"median_ms": 3.0, "low_ms": 2.0, "high_ms": 4.0, "samples": 5}
    assert summary([5.0, 1.0, 3.0, 2.0, 4.0]) == wanted

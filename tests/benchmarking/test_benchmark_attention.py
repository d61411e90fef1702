"""What is compared computes the same in turns, what fails is left out, and the line that says which backend to use."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diffclip.benchmarking import attention
from diffclip.benchmarking.attention import advise
from diffclip.benchmarking.operators import PLAIN, Operator, Shape, make_inputs, operators
from diffclip.benchmarking.timing import summary, take_turns

CPU = torch.device("cpu")
SHAPE = Shape(2, 4, 9, 8, causal=True)


def test_operators_agree_forward_and_backward() -> None:
    inputs = make_inputs(SHAPE, CPU, torch.float32, seed=0)
    found = operators(CPU)
    expected = found["differential eager"].forward(inputs)
    assert expected.shape == (2, 9, 32)
    gradients = found["differential eager"].forward_and_backward(inputs)
    for name in ("differential auto", "differential sdpa", "differential timm"):
        torch.testing.assert_close(found[name].forward(inputs), expected)
        for got, wanted in zip(found[name].forward_and_backward(inputs), gradients, strict=True):
            torch.testing.assert_close(got, wanted)
    plain = found[PLAIN].forward(inputs)
    assert plain.shape == expected.shape
    assert not torch.allclose(plain, expected)


def test_rows_have_times_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("too much")

    given = operators(CPU) | {"differential sdpa": Operator(fail)}
    monkeypatch.setattr(attention, "operators", lambda device: given)
    monkeypatch.setattr(attention, "why_not", lambda name, inputs: "no" if "triton" in name else None)
    told: list[int] = []
    rows = attention.measure(SHAPE, CPU, torch.float32, rounds=2, tell=lambda: told.append(1))
    assert list(rows) == list(given)
    assert rows["differential sdpa"] == {"why": "out of memory"}
    assert rows["differential triton"] == {"why": "no"}
    row = rows["differential timm"]
    assert row["forward"]["samples"] == 2
    assert row["backward"]["median_ms"] == row["both"]["median_ms"] - row["forward"]["median_ms"]
    assert len(told) == len(given) + 3


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


def test_summary_is_the_median_and_the_quartiles() -> None:
    wanted = {"median_ms": 3.0, "low_ms": 2.0, "high_ms": 4.0, "samples": 5}
    assert summary([5.0, 1.0, 3.0, 2.0, 4.0]) == wanted


def rows(**times: float) -> dict[str, dict[str, Any]]:
    """Rows of one tower with the given milliseconds; what is not given cannot run."""
    names = ("auto", "eager", "sdpa", "triton", "timm")
    return {
        f"differential {name}": {"both": {"median_ms": times[name]}} if name in times else {"why": "not here"}
        for name in names
    }


AUTO = {"vision": "sdpa", "text": "eager"}


def test_auto_is_advised_while_nothing_is_clearly_quicker() -> None:
    found = {
        "vision": rows(auto=10.2, sdpa=10, eager=20, timm=20.4),
        "text": rows(auto=5, sdpa=9, eager=5, timm=7.5),
    }
    backend, line = advise(found, AUTO)
    assert backend == "auto"
    assert line == (
        'use attention_backend="auto": sdpa for vision, 2.0 times; eager for text, 1.5 times '
        "the speed of timm's arrangement, forward and backward"
    )


def test_another_backend_is_advised_where_it_is_quicker_over_both_towers() -> None:
    found = {
        "vision": rows(auto=20, sdpa=10, eager=30, timm=20),
        "text": rows(auto=5, sdpa=5, eager=6, timm=5),
    }
    backend, line = advise(found, AUTO)
    assert backend == "sdpa"
    assert line.startswith('use attention_backend="sdpa": vision, 2.0 times; text, 1.0 times')

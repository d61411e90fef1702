"""The operators agree and take turns, failing operators are left out, and a line advises on the backend to use."""

from functools import partial
from typing import Any

import pytest
import torch

from diffclip.benchmarking import attention
from diffclip.benchmarking.attention import advise, errors_of
from diffclip.benchmarking.operators import OPERATORS, PLAIN, Operator, Shape, make_inputs
from diffclip.benchmarking.timing import summarize, take_turns

CPU = torch.device("cpu")
SHAPE = Shape(2, 4, 9, 8, causal=True)


def test_operators_agree_forward_and_backward() -> None:
    inputs = make_inputs(SHAPE, CPU, torch.float32)
    entries = OPERATORS
    expected = entries["differential eager"].forward(inputs)
    assert expected.shape == (2, 9, 32)
    gradients = entries["differential eager"].forward_and_backward(inputs)
    for name in ("differential auto", "differential sdpa", "differential timm"):
        torch.testing.assert_close(entries[name].forward(inputs), expected)
        for gradient, wanted in zip(entries[name].forward_and_backward(inputs), gradients, strict=True):
            torch.testing.assert_close(gradient, wanted)
    plain = entries[PLAIN].forward(inputs)
    assert plain.shape == expected.shape
    assert not torch.allclose(plain, expected)


def test_each_row_has_its_times_or_the_reason_for_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("too much")

    monkeypatch.setitem(OPERATORS, "differential eager", Operator(fail))
    monkeypatch.setattr(attention, "why_not", lambda name, inputs: "no" if "triton" in name else None)
    rows = attention.measure(SHAPE, CPU, torch.float32, rounds=2)
    assert list(rows) == list(OPERATORS)
    assert rows["differential eager"] == {"why": "out of memory"}
    assert rows["differential auto"]["backend"] == "eager"  # for short rows
    assert rows["differential triton"] == {"why": "no"}
    row = rows["differential timm"]
    assert row["forward"]["samples"] == 2
    assert row["backward"]["median_ms"] == row["both"]["median_ms"] - row["forward"]["median_ms"]
    [alone] = attention.measure(SHAPE, CPU, torch.float32, rounds=2, names=["differential auto"]).values()
    assert alone["forward"]["median_ms"] > 0


def test_turns_alternate_and_a_failing_entry_is_left_out_with_its_reason() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        if name == "bad" and order.count("bad") == 3:
            raise ValueError("no more\nof it")
        return 1.0

    samples, failures = take_turns({name: partial(run, name) for name in ("bad", "good")}, rounds=4)
    assert order == ["bad", "good"] * 3 + ["good"] * 2
    assert samples == {"good": [1.0] * 4}  # the first round is not counted
    assert failures == {"bad": "ValueError: no more"}
    wanted = {"median_ms": 3.0, "low_ms": 2.0, "high_ms": 4.0, "samples": 5}
    assert summarize([5.0, 1.0, 3.0, 2.0, 4.0]) == wanted


def test_errors_are_against_the_formula() -> None:
    inputs = make_inputs(SHAPE, CPU, torch.bfloat16)
    eager, sdpa = errors_of(["differential eager", "differential sdpa"], inputs)
    assert 1e-4 < eager < 2e-2
    assert 1e-4 < sdpa < 2e-2


def rows(**times: float) -> dict[str, dict[str, Any]]:
    """Return rows of one tower with the given milliseconds; operators without a time cannot run."""
    names = ("auto", "eager", "sdpa", "triton", "timm")
    return {
        f"differential {name}": {"both": {"median_ms": times[name]}} if name in times else {"why": "not here"}
        for name in names
    }


@pytest.mark.parametrize(
    ("vision", "text", "backend", "line"),
    [
        (
            rows(auto=10.2, sdpa=10, eager=20, timm=20.4),  # no backend is clearly faster
            rows(auto=5, sdpa=9, eager=5, timm=7.5),
            "auto",
            "sdpa for vision, 2.0 times; eager for text, 1.5 times",
        ),
        (
            rows(auto=20, sdpa=10, eager=30, timm=20),
            rows(auto=5, sdpa=5, eager=6, timm=5),
            "sdpa",
            "vision, 2.0 times; text, 1.0 times",
        ),
    ],
)
def test_advice_names_the_backend_clearly_faster_over_both_towers(vision, text, backend, line) -> None:
    advice = advise({"vision": vision, "text": text}, {"vision": "sdpa", "text": "eager"})
    end = "the speed of timm's arrangement, forward and backward"
    assert advice == (backend, f'use attention_backend="{backend}": {line} {end}')

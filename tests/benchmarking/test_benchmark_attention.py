"""What is compared computes the same, and an operator that fails does not take the others along."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from diffclip.benchmarking import attention
from diffclip.benchmarking.operators import PLAIN, Operator, Shape, make_inputs, operators, why_not

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


def test_a_backend_that_another_would_replace_is_not_measured() -> None:
    inputs = make_inputs(SHAPE, CPU, torch.float32, seed=0)
    double = dataclasses.replace(inputs, q=inputs.q.double())
    assert why_not("differential triton", double) is not None
    assert why_not("differential sdpa", double) is None

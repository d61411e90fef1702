"""The floor: counts by hand."""

from __future__ import annotations

import pytest

from benchmarks.floor import Ceilings, add_floors, backward_work, forward_work
from diffclip.benchmarking.operators import Shape


def test_vit_b_16_takes_what_is_counted_by_hand() -> None:
    work = forward_work(Shape(1, 12, 197), element=2)
    # two products of 12 maps' queries and keys, and the same again with V; Q, K, V and O of 197×768 in two bytes
    assert work == (4 * 197 * 768 * 2, 2 * (2 * 12 * 197 * 197 * 64), 12 * 197 * 197)


def test_backward_takes_two_and_a_half_times_the_products_and_twice_the_bytes() -> None:
    shape = Shape(3, 8, 77, causal=True)
    forward, backward = (count(shape, 2) for count in (forward_work, backward_work))
    assert backward == (2 * forward.bytes, 2.5 * forward.operations, forward.exponentials)
    assert forward.exponentials == 3 * 8 * 77 * 78 / 2


def test_times_are_shares_of_the_floor() -> None:
    rows = {"a": {kind: {"median_ms": 2.0} for kind in ("forward", "both", "backward")}, "b": {"why": "no"}}
    add_floors(rows, Shape(2, 4, 9, 8, causal=True), 4, Ceilings(None, 1e9, None, {}))
    forward, both = rows["a"]["forward"], rows["a"]["both"]
    assert forward["floor_share"] * 2.0 == pytest.approx(forward["floor_ms"])
    assert both["floor_ms"] == pytest.approx(3.5 * forward["floor_ms"])
    assert rows["b"] == {"why": "no"}

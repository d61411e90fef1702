"""The floor: counts by hand."""

from __future__ import annotations

import pytest

from diffclip.benchmarking.shapes import Ceilings, Shape, Work, backward_work, forward_work


def test_vit_b_16_takes_what_is_counted_by_hand() -> None:
    work = forward_work(Shape(1, 12, 197), element=2)
    # two products of 12 maps' queries and keys, and the same again with V; Q, K, V and O of 197×768 in two bytes
    assert work.operations == 2 * (2 * 12 * 197 * 197 * 64)
    assert work.bytes == 4 * 197 * 768 * 2
    assert work.exponentials == 12 * 197 * 197


def test_backward_takes_two_and_a_half_times_the_products_and_twice_the_bytes() -> None:
    shape = Shape(3, 8, 77, causal=True)
    forward, backward = (count(shape, 2) for count in (forward_work, backward_work))
    assert backward.operations == 2.5 * forward.operations
    assert backward.bytes == 2 * forward.bytes
    assert backward.exponentials == forward.exponentials == 3 * 8 * 77 * 78 / 2


def test_the_slowest_part_is_the_floor() -> None:
    ceilings = Ceilings(bandwidth=100.0, operations=1000.0, exponentials=None, sources={})
    assert ceilings.floor(Work(bytes=50, operations=100, exponentials=10**9)) == (500.0, "bytes")
    assert ceilings.floor(Work(bytes=5, operations=100, exponentials=10**9)) == (100.0, "products")
    assert Ceilings(None, None, None, {}).floor(Work(1, 1, 1)) is None


def test_a_shape_is_said_in_words() -> None:
    assert str(Shape(2, 8, 77, causal=True)) == "batch 2, 8 query heads of 64, 77 tokens, causal"
    assert Shape(2, 8, 77, 32).width == 256
    assert Work(1, 2, 3) + Work(1, 1, 1) == Work(2, 3, 4)
    assert forward_work(Shape(2, 2, 3), 4).bytes == pytest.approx(2 * forward_work(Shape(1, 2, 3), 4).bytes)

import numpy as np
import pytest
from numpy.typing import NDArray

from diffclip.data import check_duplicates
from diffclip.data.check_duplicates import DISTANCE, equal_groups, near_groups

pytest.importorskip("scipy")


def flipped(value: int, bits: int, draw: np.random.Generator) -> int:
    for bit in draw.choice(64, bits, replace=False).tolist():
        value ^= 1 << bit
    return value


def near_of(values: list[int]) -> list[list[int]]:
    hashes = np.array(values, dtype=np.uint64)
    content = np.arange(len(values), dtype=np.uint64)
    return [group.tolist() for group in near_groups(hashes, content, np.zeros(len(values), dtype=bool))]


def one_by_one(values: NDArray[np.uint64]) -> list[list[int]]:
    """The groups by comparing each with each."""
    labels = np.arange(len(values))
    for place, value in enumerate(values):
        for other in np.flatnonzero(np.bitwise_count(values ^ value) <= DISTANCE):
            labels[labels == labels[other]] = labels[place]
    groups = [np.flatnonzero(labels == label).tolist() for label in np.unique(labels)]
    return sorted((group for group in groups if len(group) > 1), key=lambda group: (-len(group), group[0]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("edges", [4_000_000, 5])
def test_all_near_pairs_are_found(seed: int, edges: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check_duplicates, "_EDGES", edges)
    draw = np.random.default_rng(seed)
    centres = draw.integers(0, 2**64, 60, dtype=np.uint64).tolist()
    values = [flipped(centres[draw.integers(60)], int(draw.integers(0, 8)), draw) for _ in range(400)]
    assert near_of(values) == one_by_one(np.array(values, dtype=np.uint64))


@pytest.mark.parametrize("bits", range(1, 8))
def test_the_distance_is_exact(bits: int) -> None:
    draw = np.random.default_rng(bits)
    for _ in range(50):
        value = int(draw.integers(0, 2**64, dtype=np.uint64))
        assert near_of([value, flipped(value, bits, draw)]) == ([[0, 1]] if bits <= DISTANCE else [])


def test_groups_are_chains_and_come_by_size() -> None:
    chain = [0b1111 << (4 * place) for place in range(3)]
    far = 0xFFF << 50
    assert near_of([far, 7, *chain, far + 1]) == [[0, 5], [1, 2]]
    assert near_of([0, 0b1111, 0b11111111, 1 << 40 | 1 << 50, 1 << 60 | 0xFFFF << 40]) == [[0, 1, 2, 3]]
    assert near_of([]) == []


def test_the_same_file_stands_once_and_what_shows_nothing_not_at_all() -> None:
    looks = np.array([9, 9, 9, 8, 0, 0], dtype=np.uint64)
    content = np.array([1, 1, 2, 3, 4, 5], dtype=np.uint64)
    skip = np.array([False, False, False, False, True, True])
    assert [group.tolist() for group in near_groups(looks, content, skip)] == [[0, 2, 3]]
    assert [group.tolist() for group in equal_groups(content)] == [[0, 1]]
    assert [group.tolist() for group in equal_groups(looks)] == [[0, 1, 2], [4, 5]]

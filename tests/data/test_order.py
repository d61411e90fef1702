import numpy as np
import pytest

from diffclip.data.order import Layout, Steps, whole_epoch, windowed_epoch


def orders(
    layout: Layout, size: int, world: int = 1, window: int | None = None, epoch: int = 0
) -> list[list[list[int]]]:
    """The batches of each process."""
    steps = [Steps(layout.per_epoch // size, size, rank, world) for rank in range(world)]
    if window is None:
        epochs = [whole_epoch(layout, part, 0, epoch) for part in steps]
    else:
        epochs = [windowed_epoch(layout, part, window, 0, epoch) for part in steps]
    return [[batch.tolist() for batch in batches] for batches in epochs]


def items_of(batches: list[list[int]]) -> list[int]:
    return [item for batch in batches for item in batch]


def shard_of(layout: Layout, item: int) -> int:
    ends = np.cumsum([count for counts in layout.sources for count in counts])
    return int(np.searchsorted(ends, item % layout.total, side="right"))


@pytest.mark.parametrize("window", [None, 2])
def test_a_weight_is_the_number_of_passes_over_a_source(window: int | None) -> None:
    layout = Layout([[10, 30], [40, 1], [7], [3]], [1.0, 0.5, 2.0, 2.5])
    assert layout.total == 91
    # round() takes 20.5 to 20 and 7.5 to 8.
    assert layout.per_epoch == 40 + 20 + 14 + 8
    halves = []
    for epoch in range(3):
        items = items_of(orders(layout, 1, window=window, epoch=epoch)[0])
        assert len(set(items)) == len(items) == layout.per_epoch
        counts = np.bincount([item % 91 for item in items], minlength=91)
        assert counts[:40].tolist() == [1] * 40
        assert counts[40:81].max() == 1
        assert counts[81:88].tolist() == [2] * 7
        assert sorted(counts[88:].tolist()) == [2, 3, 3]
        # Each visit of a sample has its own item number.
        assert {item // 91 for item in items if item % 91 == 85} == {0, 1}
        halves.append(tuple(np.flatnonzero(counts[40:81])))
    assert len(set(halves)) == 3


@pytest.mark.parametrize(("window", "world"), [(None, 7), (1, 7), (16, 2)])
def test_each_sample_appears_once_and_processes_take_equal_steps(window: int | None, world: int) -> None:
    """With a window and seven processes some parts begin and end within one shard."""
    batches = orders(Layout([[3, 50, 700]], [1.0]), 4 * world, world, window)
    assert {len(part) for part in batches} == {753 // (4 * world)}
    items = [item for part in batches for item in items_of(part)]
    assert len(set(items)) == len(items) == 753 // (4 * world) * 4 * world


@pytest.mark.parametrize("window", [None, 2])
def test_a_part_of_a_source_is_drawn_evenly(window: int | None) -> None:
    layout = Layout([[2, 5, 13]], [0.25])
    counts = np.zeros(20)
    for epoch in range(800):
        counts[items_of(orders(layout, 1, window=window, epoch=epoch)[0])] += 1
    # 800 draws of 1/4: mean 200, standard deviation 12.
    assert counts.sum() == 800 * 5
    assert counts.min() > 145
    assert counts.max() < 255


def test_the_shards_of_each_window_are_reported_and_mixed() -> None:
    layout = Layout([[10] * 12], [1.0])
    # each process reads its own shards and mixes the shards of a window
    mine, other = ([shard_of(layout, item) for item in items_of(part)] for part in orders(layout, 4, 2, 3))
    assert not set(mine) & set(other)
    assert len(set(mine[:10])) > 1
    layout = Layout([[10, 4, 25, 9], [6] * 7], [1.0, 2.0])
    for rank in range(2):
        windows: list[list[int]] = []
        steps = Steps(layout.per_epoch // 6, 6, rank, 2)
        for batch in windowed_epoch(layout, steps, 4, 0, 0, 0, windows.append):
            # a batch may begin in the previous window
            assert {shard_of(layout, item) for item in batch.tolist()} <= set(items_of(windows[-2:]))
        assert all(len(shards) <= 8 for shards in windows)
        assert set(windows[-1]) <= set(windows[-2])

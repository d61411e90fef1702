from collections.abc import Iterator

import numpy as np
import pytest
import torch

from diffclip.config import PreprocessConfig
from diffclip.data import draws
from diffclip.data.draws import draw_crops, first_numbers
from diffclip.data.transforms import TrainTransform, train_transform

COUNT = 400
SEEDS = np.random.default_rng(0).integers(0, 2**64, COUNT, dtype=np.uint64)
SIZES = np.random.default_rng(1).integers(1, 400, (COUNT, 2))


def by_torch(transform: TrainTransform, sizes: np.ndarray) -> list[list[int]]:
    crops = []
    for seed, (height, width) in zip(SEEDS.tolist(), sizes.tolist(), strict=True):
        torch.default_generator.manual_seed(seed)
        crops.append(list(transform.draw(torch.empty(3, height, width, dtype=torch.uint8))))
    return crops


@pytest.fixture(autouse=True)
def generator_kept() -> Iterator[None]:
    before = torch.default_generator.get_state()
    yield
    torch.default_generator.set_state(before)


def test_the_numbers_are_those_of_the_mersenne_twister() -> None:
    numbers = first_numbers(SEEDS[:20], 23)
    for i, seed in enumerate(SEEDS[:20].tolist()):
        known = np.random.RandomState(seed % 2**32).randint(0, 2**32, 23, dtype=np.uint32)
        assert np.array_equal(numbers[:, i], known)


@pytest.mark.parametrize(
    ("scale", "flip", "sizes"),
    [
        ((0.5, 1.0), 0.5, np.full((COUNT, 2), 80)),
        ((0.08, 1.0), 0.3, SIZES),
        ((0.9, 1.0), 0.0, np.full((COUNT, 2), (375, 500))),
        ((1.0, 1.0), 1.0, np.full((COUNT, 2), 32)),
    ],
)
def test_crops_are_those_that_torch_draws(scale: tuple[float, float], flip: float, sizes: np.ndarray) -> None:
    transform = train_transform(32, PreprocessConfig(), scale, flip)
    state = torch.default_generator.get_state()
    crops = draw_crops(transform, SEEDS, sizes)
    assert torch.equal(torch.default_generator.get_state(), state)
    assert crops.tolist() == by_torch(transform, sizes)


def test_most_crops_need_no_call_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    draw = TrainTransform.draw
    monkeypatch.setattr(TrainTransform, "draw", lambda *given: calls.append(1) or draw(*given))
    draw_crops(train_transform(32, PreprocessConfig(), flip=0.5), SEEDS, np.full((COUNT, 2), 80))
    assert 16 <= len(calls) < 30


def test_where_torch_draws_in_another_way_it_draws_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "first_numbers", lambda seeds, count: ~first_numbers(seeds, count))
    transform = train_transform(32, PreprocessConfig(), flip=0.5)
    sizes = np.full((COUNT, 2), 80)
    assert draw_crops(transform, SEEDS, sizes).tolist() == by_torch(transform, sizes)


def test_no_crop_of_nothing() -> None:
    transform = train_transform(32, PreprocessConfig())
    assert draw_crops(transform, SEEDS[:0], SIZES[:0]).shape == (0, 5)

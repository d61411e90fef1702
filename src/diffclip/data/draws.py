"""The crops of many samples at once: the same that `TrainTransform.draw` draws for each after torch is seeded for it.

Seeding torch for a sample and drawing its crop takes a tenth of a millisecond, as long as a small model trains on it on
a GPU. Torch's generator is the Mersenne Twister (Matsumoto and Nishimura, 1998), whose first numbers NumPy computes for
all samples together.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from diffclip.data.transforms import TrainTransform

Crops = NDArray[np.int64]

# Parts that torchvision tries; where none fits it takes the middle, which is left to it.
_TRIES = 10
# A part takes two numbers, its place two more, the mirror one.
_NUMBERS = 2 * _TRIES + 3
# How far ahead of a number the state is that it is made of.
_BACK = 397
# Torch makes numbers in [0, 1) of 24 bits.
_UNIT = np.float32(2.0**-24)
# Relative; what single precision leaves open is a tenth of it.
_CLOSE = 2e-6
# Samples of each call that are drawn both ways.
_PROBED = 16


def draw_crops(transform: TrainTransform, seeds: NDArray[np.uint64], sizes: NDArray[np.int64]) -> Crops:
    """The crops that `transform.draw` gives for pictures of `sizes` [n, 2], each after
    `torch.default_generator.manual_seed` with its one of `seeds` [n]. That generator keeps its state.

    Returns:
        [n, 5]: the fields of `Crop`.
    """
    crops, doubtful = _draw(transform, seeds, sizes)
    state = torch.default_generator.get_state()
    try:
        # Another version of torch might draw in another way.
        probed = [_one(transform, seeds[i], sizes[i]) for i in range(min(_PROBED, len(seeds)))]
        same = [doubtful[i] or crops[i].tolist() == probed[i] for i in range(len(probed))]
        for i in np.flatnonzero(doubtful) if all(same) else range(len(seeds)):
            crops[i] = _one(transform, seeds[i], sizes[i])
    finally:
        torch.default_generator.set_state(state)
    return crops


def _one(transform: TrainTransform, seed: np.uint64, size: NDArray[np.int64]) -> list[int]:
    torch.default_generator.manual_seed(int(seed))
    height, width = size.tolist()
    return [int(value) for value in transform.draw(torch.empty(3, height, width, device="meta"))]


def _draw(
    transform: TrainTransform, seeds: NDArray[np.uint64], sizes: NDArray[np.int64]
) -> tuple[Crops, NDArray[np.bool_]]:
    """Crops, and which of them are doubtful: torch may have rounded to another, or tried more often."""
    numbers = first_numbers(seeds, _NUMBERS)
    units = (numbers & np.uint32(2**24 - 1)).astype(np.float32) * _UNIT
    heights, widths = sizes[:, 0], sizes[:, 1]
    logs = [float(value) for value in torch.log(torch.tensor(transform.ratio))]
    crops = np.zeros((len(seeds), 5), np.int64)
    doubtful, searching = np.zeros(len(seeds), bool), np.ones(len(seeds), bool)
    for place in range(0, 2 * _TRIES, 2):
        area = heights * widths * _between(units[place], *transform.scale)
        aspect = np.exp(_between(units[place + 1], *logs)).astype(np.float64)
        height, sure_of_height = _rounded(np.sqrt(area / aspect))
        width, sure_of_width = _rounded(np.sqrt(area * aspect))
        sure = sure_of_height & sure_of_width
        doubtful |= searching & ~sure
        searching &= sure
        found = searching & (height > 0) & (height <= heights) & (width > 0) & (width <= widths)
        top = numbers[place + 2] % np.where(found, heights - height + 1, 1)
        left = numbers[place + 3] % np.where(found, widths - width + 1, 1)
        mirrored = units[place + 4] < transform.flip
        crops[found] = np.stack([top, left, height, width, mirrored], axis=1)[found]
        searching &= ~found
    return crops, doubtful | searching


def _between(units: NDArray[np.float32], low: float, high: float) -> NDArray[np.float64]:
    """As torch scales them, in single precision."""
    scaled = units * (np.float32(high) - np.float32(low)) + np.float32(low)
    return scaled.astype(np.float64)


def _rounded(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """To whole numbers, and where a slightly different value would give the same."""
    sure = np.abs(values - np.floor(values) - 0.5) > _CLOSE * values
    return np.rint(values).astype(np.int64), sure


def first_numbers(seeds: NDArray[np.uint64], count: int) -> NDArray[np.uint32]:
    """The first `count` numbers (at most 227) that the Mersenne Twister gives for each of `seeds`, whose lower 32 bits
    count: [count, n]."""
    word = seeds.astype(np.uint32)
    kept = {0: word}
    for i in range(1, _BACK + count):
        word = np.uint32(1812433253) * (word ^ (word >> np.uint32(30))) + np.uint32(i)
        if i <= count or i >= _BACK:
            kept[i] = word
    numbers = np.empty((count, len(seeds)), np.uint32)
    for i in range(count):
        mixed = (kept[i] & np.uint32(0x80000000)) | (kept[i + 1] & np.uint32(0x7FFFFFFF))
        odd = (mixed & np.uint32(1)) * np.uint32(0x9908B0DF)
        number = kept[i + _BACK] ^ (mixed >> np.uint32(1)) ^ odd
        number ^= number >> np.uint32(11)
        number ^= (number << np.uint32(7)) & np.uint32(0x9D2C5680)
        number ^= (number << np.uint32(15)) & np.uint32(0xEFC60000)
        numbers[i] = number ^ (number >> np.uint32(18))
    return numbers

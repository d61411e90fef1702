"""The sign-flip test of Fisher (1935), Section 21: numbers as likely positive as negative, all patterns or random ones.

Random patterns have the observed one counted in, so that p is never 0 (Phipson & Smyth 2010, arXiv:1603.05766).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

FLIPS = 9999
"""Random sign flips of a test; p is at least 1 / (FLIPS + 1)."""

_EXACT_BELOW = 13  # numbers: 2¹³ sign patterns are fewer than FLIPS, so all of them are tried
_FLIPS_AT_ONCE = 1 << 22


def flip_p(sums: NDArray[np.float64], seed: int) -> float:
    """The two-sided p of `sums` [n], none of them 0: the share of sign patterns with a total as far from 0, or farther.

    Args:
        seed: of the random flips, drawn where there are too many patterns to try all.
    """
    exact = len(sums) <= _EXACT_BELOW
    observed = abs(float(sums.sum()))
    # equal totals may differ by the order in which they were added
    limit = observed - 1e-9 * max(1.0, observed)
    far, tried = 0, 0
    for totals in _all_flips(sums) if exact else _random_flips(sums, seed):
        far += int((np.abs(totals) >= limit).sum())
        tried += len(totals)
    return far / tried if exact else (far + 1) / (tried + 1)


def _all_flips(sums: NDArray[np.float64]) -> Iterator[NDArray[np.float64]]:
    patterns = np.arange(2 ** len(sums))[:, None] >> np.arange(len(sums)) & 1
    yield (2 * patterns - 1) @ sums


def _random_flips(sums: NDArray[np.float64], seed: int) -> Iterator[NDArray[np.float64]]:
    """Totals under random signs. Of m sums of one size only the number of positive ones matters: one binomial. Where
    few are of one size, a bit each is quicker."""
    sizes, counts = np.unique(np.abs(sums), return_counts=True)
    generator = np.random.default_rng(seed)
    if 4 * len(sizes) > len(sums):
        # whole words of 32 bits, as the generator draws them, so that blocks of any size have the same signs
        width, step = 4 * -(-len(sums) // 32), max(1, _FLIPS_AT_ONCE // len(sums))
        for start in range(0, FLIPS, step):
            rows = min(step, FLIPS - start)
            drawn = np.frombuffer(generator.bytes(rows * width), dtype=np.uint8).reshape(rows, width)
            bits = np.unpackbits(drawn, axis=1, count=len(sums)).astype(np.float64)
            yield 2 * (bits @ sums) - sums.sum()
        return
    step = max(1, _FLIPS_AT_ONCE // len(sizes))
    for start in range(0, FLIPS, step):
        positive = generator.binomial(counts, 0.5, size=(min(step, FLIPS - start), len(sizes)))
        yield (2 * positive - counts) @ sizes

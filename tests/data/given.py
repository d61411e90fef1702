"""Pictures to read, and refusals to open a set, for several tests of data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffclip.data.evaluation_sets import open_set
from diffclip.errors import InputError


def photograph(width: int, height: int, seed: int) -> Image.Image:
    """Smooth colours with grain."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height))
    grain = rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8))


def refusal(source: str | Path, split: str, root: Path | None = None) -> str:
    """The line with which a set is not opened."""
    with pytest.raises(InputError) as raised:
        open_set(source, split, root)
    assert "\n" not in str(raised.value)
    return str(raised.value)

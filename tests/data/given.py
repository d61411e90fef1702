"""Images, tokens and error messages for several tests of data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffclip.data.evaluation_sets import open_set
from diffclip.errors import InputError


def photograph(width: int, height: int, seed: int) -> Image.Image:
    """Create an image of smooth colors with grain."""
    rng = np.random.default_rng(seed)
    smooth = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=np.uint8)).resize((width, height))
    grain = rng.normal(0, 8, (height, width, 3))
    return Image.fromarray(np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8))


def tokenize(texts: list[str]) -> torch.Tensor:
    """Take the first twelve bytes of each text as its tokens."""
    rows = [list(text.encode()[:12].ljust(12, b"\0")) for text in texts]
    return torch.tensor(rows, dtype=torch.int64).reshape(len(texts), 12)


def refusal(source: str | Path, split: str, root: Path | None = None) -> str:
    """Return the one-line error that opening the set raises."""
    with pytest.raises(InputError) as raised:
        open_set(source, split, root)
    assert "\n" not in str(raised.value)
    return str(raised.value)

"""Images, tokens and error messages for several tests of data."""

from pathlib import Path

import pytest
import torch

from diffclip.data.evaluation_sets import open_set
from diffclip.errors import InputError


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

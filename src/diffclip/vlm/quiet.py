"""Keep transformers from writing to the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers.utils import logging


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers' warnings and progress bars; errors are still shown."""
    chatter: Any = logging
    before, bars = chatter.get_verbosity(), chatter.is_progress_bar_enabled()
    chatter.set_verbosity_error()
    chatter.disable_progress_bar()
    try:
        yield
    finally:
        chatter.set_verbosity(before)
        if bars:
            chatter.enable_progress_bar()

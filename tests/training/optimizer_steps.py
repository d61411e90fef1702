"""Interrupt a training run before a step of its optimizer."""

from collections.abc import Callable
from typing import Any

import pytest
import torch


class KilledError(Exception):
    pass


def die() -> None:
    raise KilledError


def before_step(patch: pytest.MonkeyPatch, number: int, do: Callable[[], None]) -> None:
    """Call `do` before the optimizer makes its step `number`, counted from now."""
    step, calls = torch.optim.AdamW.step, iter(range(1, 1000))

    def do_and_step(self: torch.optim.AdamW, *arguments: Any) -> Any:
        if next(calls) == number:
            do()
        return step(self, *arguments)

    patch.setattr(torch.optim.AdamW, "step", do_and_step)

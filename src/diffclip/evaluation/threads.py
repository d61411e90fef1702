"""One thread where sharing work out takes longer than doing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def one_thread(alone: bool = True) -> Iterator[None]:
    """torch computes on one thread of the CPU inside, if `alone`; the number before is restored.

    Hundreds of short steps take longer to hand out than to do, and many times longer where other programs use the
    cores too.
    """
    threads = torch.get_num_threads()
    try:
        if alone:
            torch.set_num_threads(1)
        yield
    finally:
        torch.set_num_threads(threads)

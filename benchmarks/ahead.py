"""Compiling the fused kernels ahead in several processes: Triton keeps what it compiles on disk, for all of them."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from typing import Any


def run_ahead(
    work: Callable[..., None], jobs: Iterable[tuple[Any, ...]], workers: int, seconds: float
) -> None:
    """Call `work` with each of `jobs`, in `workers` processes, for so many seconds at most; failures come up later."""
    jobs = list(jobs)
    if workers <= 1 or not jobs:
        return
    started = time.perf_counter()
    failed = sum(isinstance(found, BaseException) for found in ended(work, jobs, workers, seconds))
    took = time.perf_counter() - started
    print(f"compiled ahead: {len(jobs)} jobs, {failed} failed, {took:.0f} s", flush=True)


def ended(
    work: Callable[..., Any], jobs: list[tuple[Any, ...]], workers: int, seconds: float
) -> Iterator[Any | BaseException]:
    """Call `work` with each of `jobs` in processes of their own; yield what each returns or raises, as it ends.

    What has not begun after `seconds` is left out.
    """
    pool = ProcessPoolExecutor(min(workers, len(jobs)), multiprocessing.get_context("spawn"))
    futures = [pool.submit(work, *job) for job in jobs]
    with suppress(TimeoutError):
        for future in as_completed(futures, timeout=seconds):
            yield future.exception() or future.result()
    pool.shutdown(wait=True, cancel_futures=True)

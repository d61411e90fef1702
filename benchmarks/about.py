"""Parts that the programs share: options, a description of the machine, files, and work in several processes."""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import platform
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from diffclip.files import write_text


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Make a parser whose help begins with the program's docstring, unchanged."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_common_options(parser: argparse.ArgumentParser, seconds: float) -> None:
    """Add --device, --threads, --seconds and --output."""
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=2, help="of torch on a CPU")
    parser.add_argument("--seconds", type=float, default=seconds, help="to spend on measuring, about")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"), help="folder")


def about(program: str, options: argparse.Namespace) -> dict[str, Any]:
    """Describe the command (without --output) and the machine."""
    arguments = list(sys.argv[1:])
    if "--output" in arguments:
        index = arguments.index("--output")
        del arguments[index : index + 2]
    cuda = torch.device(options.device).type == "cuda"
    described: dict[str, Any] = {
        "command": " ".join(["python -m", f"benchmarks.{program}", *arguments]),
        "device": torch.cuda.get_device_name(options.device) if cuda else platform.machine(),
        "threads": options.threads,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
    if cuda:
        import triton

        described |= {"triton": triton.__version__, "cuda": torch.version.cuda}
    return described


def largest(values: Iterable[float]) -> float:
    """Return the largest value. NaN counts as larger than every number, and is the result if there is no value."""
    return max(values, key=lambda value: math.inf if value != value else value, default=math.nan)


def write_json(file: Path, content: object) -> None:
    """Write `content` as JSON, whole or not at all."""
    write_text(file, json.dumps(content, indent=1) + "\n")


def run_ahead(
    work: Callable[..., None], jobs: Iterable[tuple[Any, ...]], workers: int, seconds: float
) -> None:
    """Compile kernels ahead of their use: call `work` with each job in `workers` processes, until `seconds` are over.
    Triton keeps the kernels on disk. Failures are only counted here; they appear again at the first use."""
    jobs = list(jobs)
    if workers <= 1 or not jobs:
        return
    started = time.perf_counter()
    failed = sum(isinstance(outcome, BaseException) for outcome in run_jobs(work, jobs, workers, seconds))
    took = time.perf_counter() - started
    print(f"compiled ahead: {len(jobs)} jobs, {failed} failed, {took:.0f} s", flush=True)


def run_jobs(
    work: Callable[..., Any], jobs: list[tuple[Any, ...]], workers: int, seconds: float
) -> Iterator[Any | BaseException]:
    """Call `work` with each job in a pool of processes; yield the result or the exception of each job as it ends.

    Jobs that have not ended after `seconds` are left out: waiting jobs are canceled, running jobs are waited for.
    """
    pool = ProcessPoolExecutor(min(workers, len(jobs)), multiprocessing.get_context("spawn"))
    futures = [pool.submit(work, *job) for job in jobs]
    with suppress(TimeoutError):
        for future in as_completed(futures, timeout=seconds):
            yield future.exception() or future.result()
    pool.shutdown(wait=True, cancel_futures=True)

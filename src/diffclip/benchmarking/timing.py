"""Measure milliseconds in samples that take turns, so that noise of the machine affects all operators alike.

On a GPU the work is recorded as a graph and replayed between two events, so that the times contain neither the kernels'
start from Python nor their first compilation. Work that cannot be recorded is timed as it runs.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from diffclip.errors import StoppedError

Call = Callable[[], object]
Sampler = Callable[[], float]
_LEAST_ROUNDS = 3
_SAMPLE_MS = 4.0  # of work in a sample on a GPU, because the events' resolution is limited


def make_sampler(calls: Sequence[Call], device: torch.device) -> Sampler:
    """Warm up `calls`, the same work on different inputs; return a sampler of the mean milliseconds of a call.

    On a GPU it replays a graph of the calls. Errors of the calls are not caught.
    """
    if device.type != "cuda":
        _run_all(calls)
        return functools.partial(_time_by_clock, calls)
    stream = _side_stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(stream):  # compiles, and initializes libraries
        _run_all([*calls, *calls])
    torch.cuda.synchronize(device)
    run: Call = functools.partial(_run_all, calls)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph, stream=stream):
            _run_all(calls)
        run = graph.replay
    except RuntimeError:  # some work waits for the host
        torch.cuda.synchronize(device)
        _side_stream.cache_clear()  # the failed recording may have left it unusable
    run_ms = _time_by_events(run, 1, device)
    repeats = max(1, min(200, round(_SAMPLE_MS / max(run_ms, 1e-3))))
    return lambda: _time_by_events(run, repeats, device) / len(calls)


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream for all recordings."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


def _run_all(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


def _time_by_clock(calls: Sequence[Call]) -> float:
    started = time.perf_counter()
    _run_all(calls)
    return 1000 * (time.perf_counter() - started) / len(calls)


def _time_by_events(run: Callable[[], object], repeats: int, device: torch.device) -> float:
    """Return the milliseconds of one `run`. An untimed run goes first, so that the GPU never waits for the host."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # the events are on its stream
        run()
        start.record()
        for _ in range(repeats):
            run()
        end.record()
    torch.cuda.synchronize(device)
    return float(start.elapsed_time(end)) / repeats


def take_turns(
    samplers: Mapping[str, Sampler], rounds: int, seconds: float | None = None
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return samples by name, one of each per round after a warm-up round, and the errors of failed samplers.

    Stop after `rounds`, or after `seconds` if at least three rounds are done.
    """
    samples: dict[str, list[float]] = {name: [] for name in samplers}
    failures: dict[str, str] = {}
    started = time.perf_counter()
    for turn in range(rounds + 1):
        is_late = seconds is not None and time.perf_counter() - started > seconds
        if is_late and turn > _LEAST_ROUNDS:
            break
        for name in list(samples):
            try:
                milliseconds = samplers[name]()
            except StoppedError:
                raise
            except Exception as error:  # the other samplers go on
                failures[name] = describe_error(error)
                del samples[name]
                continue
            if turn:
                samples[name].append(milliseconds)
    return samples, failures


def summarize(samples: Sequence[float]) -> dict[str, float]:
    """Return the median and the quartiles in milliseconds, and the number of samples."""
    low, median, high = np.quantile(samples, [0.25, 0.5, 0.75]).tolist()
    return {"median_ms": median, "low_ms": low, "high_ms": high, "samples": len(samples)}


def describe_error(error: BaseException) -> str:
    """Describe an error in a few words."""
    if isinstance(error, torch.OutOfMemoryError):
        return "out of memory"
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line.strip()}"[:200]

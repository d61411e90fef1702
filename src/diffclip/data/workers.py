"""Data workers: they leave signals to their parent, and each failure is an error of one line."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from diffclip.errors import DiffCLIPError

if TYPE_CHECKING:  # drawing scenes in processes needs no torch
    from torch.utils.data import DataLoader

Argument = TypeVar("Argument")
Found = TypeVar("Found")
Progress = Callable[[str, int, int | None], None]
"""Called with the name of what is counted, the number done since the last call, and the total (None: unknown)."""
Showing = Callable[[str], AbstractContextManager[Progress]]
"""Makes the progress display of a part from its name."""

_started: WeakSet[Any] = WeakSet()  # the workers of all loaders


def data_loader(dataset: Any, workers: int, timeout: float, **options: Any) -> DataLoader[Any]:
    """Make a DataLoader whose workers outlive signals to the whole job; with 0 workers, this process reads.
    `timeout` is in seconds without data, 0 for no limit. `options` are arguments of DataLoader."""
    import torch
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        num_workers=workers,
        timeout=timeout if workers else 0,
        worker_init_fn=leave_signals_to_parent,
        # Forked workers share the memory of the open dataset.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        # Without its own generator a DataLoader draws from the global one.
        generator=torch.Generator(),
        **options,
    )


def map_processes(
    work: Callable[[Argument], Found], jobs: Sequence[Argument], workers: int, timeout: float = 0
) -> Iterator[Found]:
    """Do the jobs in `workers` processes, or with 0 in this one, and yield the results in order. If a job fails or the
    iteration ends early, the jobs that have not begun are left out. The errors are those of `watch_batches`."""
    attempt = partial(_attempt, work)
    return watch_batches(data_loader(jobs, workers, timeout, batch_size=None, collate_fn=attempt))


def _attempt(work: Callable[[Argument], Found], job: Argument) -> Found | DiffCLIPError:
    """Return the error of a job in place of its result: raised in a worker, it would lose its type."""
    try:
        return work(job)
    except DiffCLIPError as error:
        return error


def leave_signals_to_parent(worker: int) -> None:
    """Let SIGTERM and SIGINT end a worker only if its parent sends them; for `worker_init_fn`.

    Ctrl-C, and a scheduler that stops a job, reach all processes, but the parent may need more batches to end well.
    """
    # Garbage collection of the existing objects would copy the memory that is shared with the parent.
    gc.freeze()
    # Not on macOS, where a process cannot find out which process sent a signal.
    if not hasattr(signal, "sigwaitinfo"):
        return
    parent, signals = os.getppid(), {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def wait() -> None:
        while signal.sigwaitinfo(signals).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def watch_batches(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of `loader`. A worker that died, or no data within its `timeout`, raises `DiffCLIPError`.

    An error in place of a batch is raised.
    """
    others = multiprocessing.active_children()
    batches = iter(loader)  # starts the workers, and has no public name for them
    _started.update(worker for worker in multiprocessing.active_children() if worker not in others)
    asked = time.monotonic()
    try:
        for batch in batches:
            if isinstance(batch, DiffCLIPError):
                raise batch
            yield batch
            asked = time.monotonic()
    except RuntimeError as error:
        if (death := describe_dead_worker()) is not None:
            raise DiffCLIPError(death) from error
        if loader.timeout and time.monotonic() - asked >= loader.timeout:
            _end_workers()
            raise DiffCLIPError(
                f"no data came for {loader.timeout:g} seconds: check the disks, or raise data.timeout"
            ) from error
        raise
    except KeyboardInterrupt:
        _end_workers()
        raise


def describe_dead_worker() -> str | None:
    """Describe a worker of this process that was killed or failed; None if there is none. torch raises a
    `RuntimeError` without a type of its own about it, wherever the program is when the signal comes."""
    for worker in _started:
        if worker.exitcode:
            ending = f"was killed by signal {-worker.exitcode}" if worker.exitcode < 0 else "failed"
            return f"a data worker died (it {ending}): is memory short, or shared memory? Use fewer workers"
    return None


def _end_workers() -> None:
    """End all workers: otherwise the process would wait for each of them when it ends."""
    for worker in _started.intersection(multiprocessing.active_children()):
        worker.terminate()

"""Data workers: signals are left to their parent, and their failures are one line."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import TYPE_CHECKING, Any, TypeVar

from diffclip.errors import DiffCLIPError

if TYPE_CHECKING:  # drawing scenes in processes needs no torch
    from torch.utils.data import DataLoader

Argument = TypeVar("Argument")
Found = TypeVar("Found")
Progress = Callable[[str, int, int | None], None]
"""Called with what is counted, how many more are done, and of how many (None: not known)."""


def data_loader(dataset: Any, workers: int, timeout: float = 0, **options: Any) -> DataLoader[Any]:
    """A DataLoader whose workers outlive signals to the whole job; `options` are its own.

    Args:
        dataset: what to read.
        workers: processes that read ahead; 0 reads in this one.
        timeout: seconds after which workers that give nothing are an error; 0 waits for ever.
    """
    import torch
    from torch.utils.data import DataLoader

    return DataLoader(
        dataset,
        num_workers=workers,
        timeout=timeout if workers else 0,
        worker_init_fn=leave_signals_to_parent,
        # Forked workers share the memory of what is open.
        multiprocessing_context="fork" if workers and sys.platform == "linux" else None,
        # Without its own generator a DataLoader draws from the global one.
        generator=torch.Generator(),
        **options,
    )


def in_processes(
    work: Callable[[Argument], Found], jobs: Sequence[Argument], workers: int
) -> Iterator[Found]:
    """Do each job in one of so many processes, or in this one, and yield the results in order. A failure, or an end of
    the iteration, leaves out the jobs that have not begun."""
    if workers <= 1 or len(jobs) == 1:
        yield from map(work, jobs)
        return
    # forking a process that may hold threads (torch does) can deadlock
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        try:
            with blocked({signal.SIGINT}):  # Ctrl-C reaches all processes, and only this one tells it
                futures = deque(pool.submit(work, job) for job in jobs)
            while futures:
                yield futures.popleft().result()
        except KeyboardInterrupt:
            for process in multiprocessing.active_children():
                process.terminate()
            raise
        except BrokenProcessPool as error:
            raise DiffCLIPError(
                "a process died, was memory short? Free some, or use fewer --workers"
            ) from error
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


@contextmanager
def blocked(signals: set[signal.Signals]) -> Iterator[None]:
    """Block `signals` for a while; processes that are started meanwhile take it over for good."""
    resource_tracker.ensure_running()  # its start would let them through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_parent(worker: int) -> None:
    """For `worker_init_fn`: SIGTERM and SIGINT end a worker only if its parent sends them.

    A scheduler that stops a job, and Ctrl-C, reach all processes; the parent may still want its batches, to end well.
    """
    # A search for garbage among what was there before would copy the memory that is shared with the parent.
    gc.freeze()
    # Not on macOS, where nothing tells who sent a signal.
    if not hasattr(signal, "sigwaitinfo"):
        return
    parent, signals = os.getppid(), {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)

    def wait() -> None:
        while signal.sigwaitinfo(signals).si_pid != parent:
            pass
        os._exit(0)

    threading.Thread(target=wait, name="signals", daemon=True).start()


def watched(loader: DataLoader[Any]) -> Iterator[Any]:
    """Yield the batches of `loader`; a worker that died, or nothing for its `timeout`, raises `DiffCLIPError`."""
    batches = iter(loader)
    try:
        yield from batches
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        if reason.startswith("DataLoader worker (pid"):
            raise DiffCLIPError(
                f"a data worker died ({reason}): was memory short, or a container's shared memory? Use fewer workers"
            ) from error
        if reason.startswith("DataLoader timed out"):
            # Each would otherwise be waited for when the process ends.
            for worker in getattr(batches, "_workers", []):
                worker.terminate()
            raise DiffCLIPError(
                f"no data came for {loader.timeout:g} seconds: check the disks, or raise data.timeout"
            ) from error
        raise

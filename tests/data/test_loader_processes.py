"""The loader in a process of its own, with workers that are told to end."""

import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from given import tokenize

from diffclip.config import PreprocessConfig
from diffclip.data.corpus import Corpus
from diffclip.data.loader import CaptionLoader
from diffclip.data.transforms import TrainTransform
from diffclip.data.workers import in_processes
from diffclip.errors import DiffCLIPError


def read_epoch(folder: Path, parent: Connection) -> None:
    """Read an epoch as the leader of a group of processes: a batch of each worker, and the others when asked."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: parent.send("told to end"))
    transform = TrainTransform(8, PreprocessConfig())
    batches = CaptionLoader(Corpus(folder), transform, tokenize, 8, 3, workers=2).epoch(0)
    for _ in range(2):  # both workers have started when each has given a batch
        next(batches)
    parent.send("ready")
    parent.recv()
    parent.send(2 + sum(1 for _ in batches))


def test_signals_to_all_processes_do_not_end_the_workers(
    tmp_path: Path, write_shard: Callable[..., Path]
) -> None:
    write_shard(tmp_path / "0.tar", 160)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    process = context.Process(target=read_epoch, args=(tmp_path, theirs))
    process.start()
    theirs.close()
    assert ours.recv() == "ready"
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(process.pid, number)
        assert ours.recv() == "told to end"
    # The workers have been told by now.
    time.sleep(0.2)
    ours.send("go on")
    assert ours.recv() == 20
    process.join()
    assert process.exitcode == 0
    with pytest.raises(ProcessLookupError):  # no process of the group is left
        os.killpg(process.pid, 0)


def test_a_job_whose_process_dies_is_one_line() -> None:
    with pytest.raises(DiffCLIPError, match="a process died, was memory short"):
        list(in_processes(os._exit, [1, 1], 2))

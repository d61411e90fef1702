"""The loader in a process of its own, with workers that are told to end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diffclip.data.workers import in_processes
from diffclip.errors import DiffCLIPError

PROGRAM = """
import signal, sys, torch
from diffclip.config import PreprocessConfig
from diffclip.data.corpus import Corpus
from diffclip.data.loader import CaptionLoader
from diffclip.data.transforms import TrainTransform

torch.set_num_threads(1)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: print("told to end", flush=True))
transform = TrainTransform(8, PreprocessConfig())
tokenize = lambda texts: torch.zeros(len(texts), 4, dtype=torch.int64)
batches = CaptionLoader(Corpus(sys.argv[1]), transform, tokenize, 8, 3, workers=2).epoch(0)
next(batches)
print("ready", flush=True)
input()
print(1 + sum(1 for _ in batches))
"""


def test_signals_to_all_processes_do_not_end_the_workers(
    tmp_path: Path, write_shard: Callable[..., Path]
) -> None:
    write_shard(tmp_path / "0.tar", 400)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    for number in (signal.SIGTERM, signal.SIGINT):
        os.killpg(process.pid, number)
        assert process.stdout.readline() == "told to end\n"
    # The workers have been told by now.
    time.sleep(0.2)
    output, _ = process.communicate("\n")
    assert (output, process.returncode) == ("50\n", 0)
    with pytest.raises(ProcessLookupError):  # no process of the group is left
        os.killpg(process.pid, 0)


def test_a_job_whose_process_dies_is_one_line() -> None:
    with pytest.raises(DiffCLIPError, match="a process died, was memory short"):
        list(in_processes(os._exit, [1, 1], 2))

"""The loader in several processes, with workers that are told to end or do not answer."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

WriteShard = Callable[..., Path]

_PROGRAM = """
import signal, sys, time
import torch
from diffclip.config import PreprocessConfig
from diffclip.data.corpus import Corpus
from diffclip.data.loader import CaptionLoader
from diffclip.data.transforms import TrainTransform
from diffclip.errors import DiffCLIPError

folder = sys.argv[1]
torch.set_num_threads(1)

def tokenize(texts):
    return torch.zeros(len(texts), 4, dtype=torch.int64)

def loader_of(transform=TrainTransform(8, PreprocessConfig()), window=None, **options):
    corpus = Corpus(folder, window=window)
    return CaptionLoader(corpus, transform, tokenize, **{"batch_size": 8, "seed": 3, **options})
"""


def start(folder: Path, program: str, *words: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM + program, str(folder), *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )


@pytest.mark.parametrize("window", [None, 2])
def test_two_processes_and_shards_of_unequal_size(
    tmp_path: Path, write_shard: WriteShard, window: int | None
) -> None:
    sizes = (3, 50, 700)
    for number, size in enumerate(sizes):
        write_shard(tmp_path / f"{number}.tar", size, start=sum(sizes[:number]))
    program = f"""
rank = int(sys.argv[2])
loader = loader_of(window={window}, rank=rank, world=2, workers=rank * 4, batch_size=10)
print(loader.samples, loader.batches_per_epoch, loader.dropped)
for epoch in range(2):
    for batch in loader.epoch(epoch):
        print(epoch, *batch.keys)
"""
    processes = [start(tmp_path, program, rank) for rank in range(2)]
    outputs = [process.communicate()[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert [lines[0] for lines in outputs] == ["753 75 3"] * 2
    batches = [[line.split() for line in lines[1:]] for lines in outputs]
    assert [len(part) for part in batches] == [150, 150]
    for epoch in ("0", "1"):
        parts = [[batch[1:] for batch in part if batch[0] == epoch] for part in batches]
        assert {len(batch) for part in parts for batch in part} == {5}
        keys = [key for part in parts for batch in part for key in batch]
        assert len(set(keys)) == len(keys) == 750
    assert batches[0][0] != batches[0][75]


def test_signals_to_all_processes_do_not_end_the_workers(tmp_path: Path, write_shard: WriteShard) -> None:
    write_shard(tmp_path / "0.tar", 400)
    program = """
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda *_: print("told to end", flush=True))
loader = loader_of(workers=2)
batches = loader.epoch(0)
next(batches)
print("ready", flush=True)
input()
print(1 + sum(1 for _ in batches))
"""
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM + program, str(tmp_path)],
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
    assert output.splitlines() == ["50"]
    assert process.returncode == 0
    assert not _group(process.pid)


def test_workers_that_give_nothing_are_an_error_and_end(tmp_path: Path, write_shard: WriteShard) -> None:
    write_shard(tmp_path / "0.tar", 40)
    program = """
def never(pixels, seed):
    time.sleep(10_000)

try:
    next(loader_of(never, workers=2, timeout=0.5).epoch(0))
except DiffCLIPError as error:
    print(error)
"""
    process = start(tmp_path, program)
    output, _ = process.communicate()
    assert output.splitlines() == [
        "no data came for 0.5 seconds: see whether the disks answer, or raise data.timeout"
    ]
    assert process.returncode == 0
    assert not _group(process.pid)


def _group(number: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    return True

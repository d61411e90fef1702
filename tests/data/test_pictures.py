import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from diffclip.config import PreprocessConfig
from diffclip.data.pictures import evaluation_batches
from diffclip.data.samples import Fault
from diffclip.data.shards import Shards
from diffclip.data.transforms import eval_transform
from diffclip.errors import DiffCLIPError, InputError

WriteShard = Callable[..., Path]
SIZE = 8


@pytest.mark.parametrize("workers", [0, 2])
def test_evaluation_goes_in_order_past_broken_pictures(
    tmp_path: Path, write_shard: WriteShard, workers: int
) -> None:
    path = write_shard(tmp_path / "0.tar", 11, changes={n: {"jpg": b"x"} for n in (2, 6, 7, 8)})
    shards, transform = Shards([path]), eval_transform(SIZE, PreprocessConfig())
    faults: list[Fault] = []
    indices = list(range(10, -1, -1))
    batches = list(evaluation_batches(shards, indices, transform, 3, faults, workers))
    # Positions 2, 3 and 4 are the broken samples 8, 7 and 6, position 8 is sample 2.
    assert [batch.positions for batch in batches] == [[0, 1], [5], [6, 7], [9, 10]]
    assert [fault.name for fault in faults] == [f"{path}:s{n:07d}" for n in (8, 7, 6, 2)]
    assert batches[0].images.shape == (2, 3, SIZE, SIZE)
    assert batches[0].images.dtype == torch.float32
    alone = next(evaluation_batches(shards, [5], transform, 3, []))
    assert torch.equal(alone.images, batches[1].images)


def test_evaluation_of_nothing_but_broken_pictures(tmp_path: Path, write_shard: WriteShard) -> None:
    shards = Shards([write_shard(tmp_path / "0.tar", 3, changes={n: {"jpg": b"x"} for n in range(3)})])
    with pytest.raises(InputError, match=r"every picture in .* is broken, the first one"):
        list(evaluation_batches(shards, range(3), eval_transform(SIZE, PreprocessConfig()), 2, []))


def _dies(picture: Image.Image) -> Tensor:
    os.kill(os.getpid(), signal.SIGKILL)
    return torch.zeros(3, SIZE, SIZE)


def test_a_worker_that_dies_ends_evaluation(tmp_path: Path, write_shard: WriteShard) -> None:
    shards = Shards([write_shard(tmp_path / "0.tar", 3)])
    with pytest.raises(DiffCLIPError, match="a data worker died"):
        list(evaluation_batches(shards, range(3), _dies, 2, [], workers=1))

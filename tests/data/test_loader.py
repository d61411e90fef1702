import multiprocessing
import os
import signal
import time
from collections.abc import Iterable
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from given import image_bytes, write_shard
from torch import Tensor

from diffclip.config import PreprocessConfig
from diffclip.data.loader import Batch, CaptionLoader, CropTransform
from diffclip.data.pairs import Pairs
from diffclip.data.transforms import TrainTransform
from diffclip.errors import DiffCLIPError, InputError

SIZE = 8


def tokenize(texts: list[str]) -> Tensor:
    """Take the first twelve bytes of each text as its tokens."""
    return torch.tensor([list(text.encode()[:12].ljust(12, b"\0")) for text in texts])


def texts(batch: Batch) -> list[str]:
    return [bytes(row).rstrip(b"\0").decode() for row in batch.tokens.tolist()]


def loader_of(
    paths: Iterable[Path],
    batch_size: int = 4,
    transform: CropTransform | None = None,
    window: int | None = None,
    **options: object,
) -> CaptionLoader:
    pairs = Pairs([str(path) for path in paths], window=window)
    transform = transform or TrainTransform(SIZE, PreprocessConfig())
    return CaptionLoader(pairs, transform, tokenize, batch_size, **{"seed": 0, **options})


def same(a: list[Batch], b: list[Batch]) -> bool:
    return len(a) == len(b) and all(
        x.keys == y.keys and torch.equal(x.images, y.images) and torch.equal(x.tokens, y.tokens)
        for x, y in zip(a, b, strict=True)
    )


def crops(batches: Iterable[Batch]) -> dict[str, list[Tensor]]:
    """Group the images by sample."""
    images: dict[str, list[Tensor]] = {}
    for batch in batches:
        for key, image in zip(batch.keys, batch.images, strict=True):
            images.setdefault(key, []).append(image)
    return images


@pytest.fixture
def paths(tmp_path: Path) -> list[Path]:
    """Write shards of unequal size with 23 samples in total."""
    sizes = (3, 1, 19)
    return [write_shard(tmp_path / f"{n}.tar", size, start=sum(sizes[:n])) for n, size in enumerate(sizes)]


def test_each_visit_of_an_image_draws_one_caption_at_random(paths: list[Path]) -> None:
    loader = loader_of(paths)
    assert (loader.samples, loader.batches_per_epoch, loader.dropped, loader.faults) == (23, 5, 3, [])
    drawn: dict[str, list[str]] = {}
    for epoch in range(20):
        for batch in loader.epoch(epoch):
            assert (batch.images.shape, batch.images.dtype) == ((4, 3, SIZE, SIZE), torch.uint8)
            for key, text in zip(batch.keys, texts(batch), strict=True):
                word, number = text.split()
                assert int(number) == int(key[1:])
                drawn.setdefault(key, []).append(word)
    shares = [np.mean([word == "first" for word in words]) for words in drawn.values()]
    assert 0.4 < np.mean(shares) < 0.6
    assert sum(0 < share < 1 for share in shares) == 23


def test_order_and_crops_depend_on_epoch_and_seed_alone(paths: list[Path]) -> None:
    before = torch.get_rng_state()
    first, again = list(loader_of(paths).epoch(1)), list(loader_of(paths).epoch(1))
    assert same(first, again)
    assert not same(first, list(loader_of(paths).epoch(2)))
    assert not same(first, list(loader_of(paths, seed=1).epoch(1)))
    assert torch.equal(torch.get_rng_state(), before)
    images = crops([*first, *loader_of(paths).epoch(2)])
    assert any(len(pair) == 2 and not torch.equal(*pair) for pair in images.values())


@pytest.mark.parametrize(("workers", "window"), [(0, None), (2, 2)])
def test_an_epoch_can_start_at_any_batch(paths: list[Path], workers: int, window: int | None) -> None:
    whole = list(loader_of(paths, window=window).epoch(3))
    loader = loader_of(paths, workers=workers, window=window)
    for start in (0, 2, 5):
        assert same(list(loader.epoch(3, start_batch=start)), whole[start:])


@pytest.mark.parametrize("window", [None, 2])
def test_each_process_reads_its_part_of_each_batch(paths: list[Path], window: int | None) -> None:
    parts = [loader_of(paths, window=window, rank=rank, world=2) for rank in range(2)]
    assert {(part.samples, part.batches_per_epoch, part.dropped) for part in parts} == {(23, 5, 3)}
    batches = [list(part.epoch(1)) for part in parts]
    assert {len(batch) for part in batches for batch in part} == {2}
    keys = [key for part in batches for batch in part for key in batch.keys]
    assert len(set(keys)) == 20
    if window is None:
        # Batches, crops and captions are those of a single process.
        for whole, first, second in zip(loader_of(paths).epoch(1), *batches, strict=True):
            assert whole.keys == first.keys + second.keys
            assert torch.equal(whole.images, torch.cat([first.images, second.images]))
            assert torch.equal(whole.tokens, torch.cat([first.tokens, second.tokens]))
    with pytest.raises(InputError, match="batch_size 4 cannot be shared equally by 3 processes"):
        loader_of(paths, world=3)


def test_a_sample_shown_twice_gets_two_different_crops(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "0.tar", 9)
    pairs = Pairs(SimpleNamespace(shards=str(path), weight=2.5))
    loader = CaptionLoader(pairs, TrainTransform(SIZE, PreprocessConfig()), tokenize, 11, seed=0)
    assert (loader.samples, loader.batches_per_epoch, loader.dropped) == (22, 2, 0)
    images = crops(loader.epoch(0)).values()
    assert sorted(map(len, images)) == [2] * 5 + [3] * 4
    assert sum(not torch.equal(visits[0], visits[1]) for visits in images) > 4


def test_crops_do_not_depend_on_the_window_batch_or_workers(paths: list[Path]) -> None:
    expected = crops(loader_of(paths, batch_size=1).epoch(2))
    images = crops(loader_of(paths, batch_size=7, window=2, workers=2).epoch(2))
    assert (len(expected), len(images)) == (23, 21)
    assert all(torch.equal(expected[key][0], image) for key, (image,) in images.items())


def test_workers_serve_all_epochs_one_at_a_time(paths: list[Path]) -> None:
    loader, expected = loader_of(paths, workers=2), loader_of(paths)
    for epoch in (0, 1, 1):
        assert same(list(loader.epoch(epoch)), list(expected.epoch(epoch)))
        assert len(multiprocessing.active_children()) >= 2
    # An epoch that is left early does not change the next epoch.
    first = loader.epoch(2)
    next(first)
    assert same(list(loader.epoch(3)), list(expected.epoch(3)))
    with pytest.raises(DiffCLIPError, match="another epoch"):
        next(first)


def dies(image: Tensor, seed: int) -> Tensor:
    """Kill the worker, as a machine that runs out of memory would."""
    os.kill(os.getpid(), signal.SIGKILL)
    return image


def test_a_dead_worker_raises_an_error(paths: list[Path]) -> None:
    with pytest.raises(DiffCLIPError, match="a data worker died"):
        next(loader_of(paths, transform=dies, workers=1).epoch(0))


def test_workers_that_send_no_data_raise_an_error_and_are_ended(paths: list[Path]) -> None:
    def hang(image: Tensor, seed: int) -> Tensor:
        time.sleep(1000)
        return image

    with pytest.raises(DiffCLIPError, match=r"no data came for 0\.5 seconds: check the disks"):
        next(loader_of(paths, transform=hang, workers=2, timeout=0.5).epoch(0))
    assert not multiprocessing.active_children()


def test_broken_samples_make_their_batch_smaller(tmp_path) -> None:
    changes = {2: {"jpg": image_bytes(2)[:-20]}, 5: {"txt": b"\n \n"}}
    changes |= {9: {"jpg": b"text"}, 10: {"txt": b"\xff"}}
    path = write_shard(tmp_path / "0.tar", 12, changes=changes)
    batches = list(loader_of([path], workers=2).epoch(0))
    assert len(batches) == 3
    for batch in batches:
        assert len(batch) + len(batch.faults) == 4
        assert len(batch.images) == len(batch.tokens) == len(batch.lengths) == len(batch.keys) == len(batch)
    faults = {fault.name: fault.reason for batch in batches for fault in batch.faults}
    assert set(faults) == {f"{path}:s{n:07d}" for n in changes}
    assert "cut short" in faults[f"{path}:s0000002"]
    assert faults[f"{path}:s0000005"] == "has an empty caption"
    assert "is not an image" in faults[f"{path}:s0000009"]
    assert "not UTF-8" in faults[f"{path}:s0000010"]
    assert not any("\n" in reason for reason in faults.values())
    # Broken samples do not change the whole samples.
    whole = crops(loader_of([write_shard(tmp_path / "1.tar", 12)]).epoch(0))
    assert all(torch.equal(whole[key][0], image) for key, (image,) in crops(batches).items())


def test_a_batch_of_broken_samples_keeps_its_place(tmp_path: Path) -> None:
    good = loader_of([write_shard(tmp_path / "good.tar", 6)], 2)
    broken = [int(key[1:]) for key in list(good.epoch(0))[1].keys]
    path = write_shard(tmp_path / "0.tar", 6, changes={n: {"jpg": b"x"} for n in broken})
    batches = list(loader_of([path], 2).epoch(0))
    assert [len(batch) for batch in batches] == [2, 0, 2]
    assert (batches[1].images.shape, batches[1].tokens.shape) == ((0, 3, SIZE, SIZE), (0, 12))
    assert len(batches[1].faults) == 2


@pytest.mark.parametrize(("workers", "window"), [(0, None), (1, 2)])
def test_decoded_images_make_the_same_batches(tmp_path, workers, window) -> None:
    path = write_shard(tmp_path / "0.tar", 23, changes={3: {"jpg": b"broken"}, 5: {"txt": b"one\n"}})
    expected = list(loader_of([path], window=window).epoch(1, 2))
    loader = loader_of([path], window=window, workers=workers)
    loader.pairs.decode()
    path.write_bytes(b"no tar")
    batches = list(loader.epoch(1, 2))
    assert same(batches, expected)
    assert [batch.faults for batch in batches] == [batch.faults for batch in expected]


def test_decoded_images_larger_than_the_memory_are_refused(tmp_path, monkeypatch) -> None:
    memory = {"SC_PAGE_SIZE": 2 * 10 * 12 * 3, "SC_PHYS_PAGES": 50}
    monkeypatch.setattr("os.sysconf", memory.__getitem__)
    pairs = Pairs(write_shard(tmp_path / "0.tar", 101))
    with pytest.raises(InputError, match=r"101 images take .* --edge, or data\.memory=false"):
        pairs.decode()


def test_fewer_samples_than_the_batch_size_are_refused(tmp_path: Path) -> None:
    path = write_shard(tmp_path / "0.tar", 5, changes={1: {"txt": None}})
    words = r"4 samples with .* are fewer than the batch size 8.*s0000001 has no caption"
    with pytest.raises(InputError, match=words):
        loader_of([path], 8)
    assert loader_of([path], 4).batches_per_epoch == 1


# --- signals ---


def read_epoch(folder: Path, parent: Connection) -> None:
    """Read an epoch as the leader of a process group: one batch per worker, and the other batches when asked."""
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: parent.send("told to end"))
    transform = TrainTransform(8, PreprocessConfig())
    batches = CaptionLoader(Pairs(folder), transform, tokenize, 8, 3, workers=2).epoch(0)
    for _ in range(2):  # both workers have started when each has given a batch
        next(batches)
    parent.send("ready")
    parent.recv()
    parent.send(2 + sum(1 for _ in batches))


def test_signals_to_all_processes_do_not_end_the_workers(tmp_path) -> None:
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
    # Give the workers time to receive the signals.
    time.sleep(0.2)
    ours.send("go on")
    assert ours.recv() == 20
    process.join()
    assert process.exitcode == 0
    with pytest.raises(ProcessLookupError):  # no process of the group is left
        os.killpg(process.pid, 0)

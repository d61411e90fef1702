import io
import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from diffclip.config import PreprocessConfig, TextConfig
from diffclip.data import decoded, free_memory
from diffclip.data.corpus import Corpus, open_corpus
from diffclip.data.decoded import decoded_corpus
from diffclip.data.loader import Batch, CaptionLoader
from diffclip.data.picture_memory import PictureMemory
from diffclip.data.resident import ResidentLoader
from diffclip.data.transforms import train_transform
from diffclip.errors import InputError
from diffclip.tokenizer import Tokenizer

WriteShard = Callable[..., Path]
SIZE = 8
TRANSFORM = train_transform(SIZE, PreprocessConfig(), flip=0.5)
TOKENIZER = Tokenizer(TextConfig(context_length=12))


def both(
    corpus: Corpus, folder: Path, batched: bool | None = None, **options: int
) -> tuple[CaptionLoader, ResidentLoader]:
    options = {"batch_size": 4, "seed": 5, **options}
    memory = PictureMemory(folder, batched=batched)
    return (
        CaptionLoader(corpus, TRANSFORM, TOKENIZER, **options),
        memory.loader(corpus, TRANSFORM, TOKENIZER, **options),
    )


def check_same(a: list[Batch], b: list[Batch], within: int = 0) -> None:
    assert len(a) == len(b)
    for x, y in zip(a, b, strict=True):
        assert (x.keys, x.faults) == (y.keys, y.faults)
        assert torch.equal(x.tokens, y.tokens)
        assert x.images.shape == y.images.shape
        assert x.images.dtype == y.images.dtype
        assert ((x.images.int() - y.images.int()).abs() <= within).all()


@pytest.fixture
def paths(tmp_path: Path, write_shard: WriteShard) -> list[Path]:
    """Shards of unequal size with three broken pictures and one without a caption, 23 usable samples together."""
    broken = {2: {"jpg": b"x"}, 7: {"jpg": b"y"}, 8: {"txt": None}, 20: {"txt": b"\xff\xfe\xfd"}}
    sizes = (3, 1, 20)
    return [
        write_shard(tmp_path / f"{n}.tar", size, start=sum(sizes[:n]), changes=broken)
        for n, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("batched", [None, True])
def test_batches_are_those_of_the_other_loader(
    paths: list[Path], tmp_path: Path, batched: bool | None
) -> None:
    corpus = open_corpus([{"shards": str(paths[2]), "weight": 1.6}, {"shards": [str(p) for p in paths[:2]]}])
    known, ours = both(corpus, tmp_path / "memory", batched)
    for name in ("samples", "batches_per_epoch", "dropped", "faults", "corpus"):
        assert getattr(known, name) == getattr(ours, name)
    state = torch.get_rng_state()
    for epoch, start in ((0, 0), (1, 0), (1, 3), (2, known.batches_per_epoch)):
        check_same(
            list(known.epoch(epoch, start)), list(ours.epoch(epoch, start)), within=2 if batched else 0
        )
    assert torch.equal(torch.get_rng_state(), state)
    assert sum(len(batch.faults) for batch in ours.epoch(0)) >= 3
    assert ours.resident == ("cpu, batched" if batched else "cpu")


def test_each_process_gets_its_part(paths: list[Path], tmp_path: Path) -> None:
    corpus = open_corpus([str(path) for path in paths])
    for rank in range(2):
        known, ours = both(corpus, tmp_path / "memory", rank=rank, world=2)
        check_same(list(known.epoch(1)), list(ours.epoch(1)))


def test_pictures_of_many_sizes_are_stacked(tmp_path: Path, write_shard: WriteShard) -> None:
    def sized(number: int) -> bytes:
        buffer = io.BytesIO()
        values = np.random.default_rng(number).integers(0, 256, (9 + number, 20 - number, 3), dtype=np.uint8)
        Image.fromarray(values).save(buffer, "PNG")
        return buffer.getvalue()

    path = write_shard(tmp_path / "0.tar", 8, changes={n: {"jpg": None, "png": sized(n)} for n in range(8)})
    known, ours = both(open_corpus(str(path)), tmp_path / "memory", batched=True)
    check_same(list(known.epoch(0)), list(ours.epoch(0)), within=2)


def test_what_is_decoded_is_used_again_until_a_shard_changes(
    tmp_path: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shard(tmp_path / "0.tar", 5)
    calls = []
    monkeypatch.setattr(
        decoded, "decode", lambda *given, decode=decoded.decode: calls.append(1) or decode(*given)
    )
    for expected in (5, 5):
        decoded_corpus(open_corpus(str(path)), tmp_path / "memory")
        assert len(calls) == expected
    write_shard(tmp_path / "0.tar", 5, start=5)
    changed = decoded_corpus(open_corpus(str(path)), tmp_path / "memory")
    assert len(calls) == 10
    assert changed.keys[0] == "s0000005"
    (changed.folder / "pixels").write_bytes(b"")
    assert len(decoded_corpus(open_corpus(str(path)), tmp_path / "memory").pixels) == 5 * 10 * 12 * 3
    assert len(calls) == 15


def _decode_slowly(path: Path, folder: Path, log: Path) -> None:
    decode = decoded.decode

    def slowly(*given: object) -> object:
        with log.open("a") as handle:
            handle.write(f"{os.getpid()}\n")
        time.sleep(0.05)
        return decode(*given)

    decoded.decode = slowly
    decoded_corpus(open_corpus(str(path)), folder)


def test_one_process_decodes_and_one_that_is_killed_leaves_nothing(
    tmp_path: Path, write_shard: WriteShard
) -> None:
    path, folder, log = write_shard(tmp_path / "0.tar", 20), tmp_path / "memory", tmp_path / "log"
    context = multiprocessing.get_context("fork")

    def start() -> multiprocessing.Process:
        process = context.Process(target=_decode_slowly, args=(path, folder, log))
        process.start()
        return process

    killed = start()
    while not log.exists():
        time.sleep(0.01)
    os.kill(killed.pid, signal.SIGKILL)
    killed.join()
    assert not list(folder.rglob("index.json"))
    [left] = folder.rglob(".*.tmp")
    os.utime(left, (0, 0))
    log.unlink()
    others = [start() for _ in range(2)]
    for process in others:
        process.join()
        assert process.exitcode == 0
    assert len(log.read_text().split()) == 20
    assert len(set(log.read_text().split())) == 1
    assert sorted(file.name for file in folder.rglob("*") if file.is_file()) == [
        "index.json",
        "lock",
        "pixels",
    ]


def test_what_cannot_be_held_is_refused(
    tmp_path: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shard(tmp_path / "0.tar", 5)
    with pytest.raises(InputError, match=r"read window by window.*leave data.window out"):
        both(open_corpus(str(path), window=1), tmp_path / "memory")
    monkeypatch.setattr(decoded, "free_memory", lambda device: 1000)
    with pytest.raises(InputError, match=r"take 0.0 GB decoded, and 0.0 GB of memory are free"):
        both(open_corpus(str(path)), tmp_path / "memory")
    assert not [file for file in (tmp_path / "memory").rglob("*") if file.is_file() and file.name != "lock"]


def test_pictures_that_are_all_broken(tmp_path: Path, write_shard: WriteShard) -> None:
    path = write_shard(tmp_path / "0.tar", 4, changes={n: {"jpg": b"x"} for n in range(4)})
    for batched in (None, True):
        known, ours = both(open_corpus(str(path)), tmp_path / "memory", batched)
        check_same(list(known.epoch(0)), list(ours.epoch(0)))


def test_captions_are_tokenised_once_a_length(tmp_path: Path, write_shard: WriteShard) -> None:
    found = decoded_corpus(open_corpus(str(write_shard(tmp_path / "0.tar", 3))), tmp_path / "memory")
    first = found.tokens(TOKENIZER)
    assert torch.equal(first, TOKENIZER([caption for own in found.captions for caption in own]))
    broken = Tokenizer(TextConfig(context_length=12))
    broken._encoder = lambda: pytest.fail("tokenised again")
    assert torch.equal(found.tokens(broken), first)
    assert found.tokens(Tokenizer(TextConfig(context_length=7))).shape == (6, 7)


def test_free_memory_is_that_of_the_machine_or_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = tmp_path / "meminfo"
    machine.write_text("MemTotal: 9 kB\nMemAvailable:   5 kB\n")
    monkeypatch.setattr(free_memory, "_MACHINE", machine)
    monkeypatch.setattr(free_memory, "_CONTAINER", tmp_path)
    cpu = torch.device("cpu")
    assert free_memory.free_memory(cpu) == 5 * 1024
    (tmp_path / "memory.max").write_text("4000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\nfile 2000\n")
    assert free_memory.free_memory(cpu) == 3000
    (tmp_path / "memory.max").write_text("max\n")
    assert free_memory.free_memory(cpu) == 5 * 1024
    machine.unlink()
    assert free_memory.free_memory(cpu) is None


def test_the_index_names_what_is_broken(paths: list[Path], tmp_path: Path) -> None:
    corpus = open_corpus([str(path) for path in paths])
    found = decoded_corpus(corpus, tmp_path / "memory")
    # by number among the usable ones, which sample 8 is not
    assert {i: fault.name.rpartition(":")[2] for i, fault in found.faults.items()} == {
        2: "s0000002",
        7: "s0000007",
        19: "s0000020",
    }
    assert len(json.loads((found.folder / "index.json").read_text())["keys"]) == corpus.samples == 23

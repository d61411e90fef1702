"""A corpus of shards at remote addresses, and batches from it."""

import gzip
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from shard_server import ShardServer, serving
from torch import Tensor

from diffclip.config import PreprocessConfig
from diffclip.data import index_files, remote_index
from diffclip.data.corpus import open_corpus
from diffclip.data.indexing import counts_of
from diffclip.data.loader import CaptionLoader
from diffclip.data.transforms import train_transform
from diffclip.errors import DiffCLIPError, InputError

WriteShard = Callable[..., Path]
COUNTS = "/shards/diffclip-index/counts.json"


@pytest.fixture
def folder(tmp_path: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Shards of 3, 5, 2 and 6 samples."""
    monkeypatch.setattr(index_files, "_WORTH_KEEPING", 1)
    sizes = (3, 5, 2, 6)
    for number, size in enumerate(sizes):
        write_shard(tmp_path / "shards" / f"{number}.tar", size, start=sum(sizes[:number]))
    return tmp_path / "shards"


@pytest.fixture
def server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    with serving(monkeypatch) as server:
        for path in folder.glob("*.tar"):
            server.files[f"/shards/{path.name}"] = path.read_bytes()
        yield server


def spec(server: ShardServer) -> str:
    return f"{server.address}/shards/{{0..3}}.tar"


def put_index(server: ShardServer, folder: Path) -> None:
    counts_of(sorted(folder.glob("*.tar")), 10)
    server.files[COUNTS] = (folder / "diffclip-index" / "counts.json").read_bytes()


def tokenize(texts: list[str]) -> Tensor:
    return torch.zeros(len(texts), 4, dtype=torch.int64)


def loader_of(corpus: object, **options: object) -> CaptionLoader:
    transform = train_transform(8, PreprocessConfig())
    return CaptionLoader(corpus, transform, tokenize, **{"batch_size": 4, "seed": 0, **options})


def keys_of(loader: CaptionLoader, epoch: int = 0, start: int = 0) -> list[list[str]]:
    return [batch.keys for batch in loader.epoch(epoch, start)]


def test_counts_come_from_beside_the_shards(server: ShardServer, folder: Path) -> None:
    put_index(server, folder)
    corpus = open_corpus(spec(server))
    assert (corpus.samples, corpus.window, corpus.is_remote) == (16, 16, True)
    assert [sum(counts) for counts in corpus.layout.sources] == [16]
    # Not one shard was fetched, nor even asked for.
    assert {path for _, path in server.requests} == {COUNTS}
    corpus.close()


def test_without_counts_each_shard_is_fetched_once(server: ShardServer, tmp_path: Path) -> None:
    corpus = open_corpus(spec(server), cache=tmp_path / "copies")
    assert corpus.layout.sources == [[3, 5, 2, 6]]
    assert [server.gets(f"/shards/{n}.tar") for n in range(4)] == [1] * 4
    assert not list((tmp_path / "copies").glob("[!.]*"))
    again = open_corpus(spec(server), cache=tmp_path / "copies")
    assert again.layout == corpus.layout
    assert again.identity() == corpus.identity()
    assert [server.gets(f"/shards/{n}.tar") for n in range(4)] == [1] * 4
    # Another shard at the address is counted again.
    server.files["/shards/2.tar"] = server.files["/shards/1.tar"]
    assert open_corpus(spec(server), cache=tmp_path / "copies").layout.sources == [[3, 5, 5, 6]]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("beside", [False, True])
def test_batches_of_remote_shards(
    server: ShardServer, folder: Path, tmp_path: Path, workers: int, beside: bool
) -> None:
    if beside:
        put_index(server, folder)
    local = loader_of(open_corpus(str(folder), window=2))
    expected = [keys_of(local, epoch) for epoch in range(2)]
    loader = loader_of(open_corpus(spec(server), window=2, cache=tmp_path / "copies"), workers=workers)
    assert [keys_of(loader, epoch) for epoch in range(2)] == expected
    assert keys_of(loader, 1, start=3) == expected[1][3:]
    loader.close()
    assert not list((tmp_path / "copies").glob("[!.]*"))


def test_copies_keep_in_step_with_the_batches(server: ShardServer, folder: Path, tmp_path: Path) -> None:
    put_index(server, folder)
    corpus = open_corpus(spec(server), window=1, cache=tmp_path / "copies")
    told: list[list[int]] = []
    corpus.ahead = lambda shards: told.append(list(shards))  # type: ignore[method-assign]
    loader = loader_of(corpus, batch_size=2)
    order, following = loader._order(0), loader._order(1)
    first = [order.shards(window)[0] for window in range(4)]
    for number, _ in enumerate(loader.epoch(0)):
        window = order.window(number + 1)
        if window < 4:
            assert told[-1] == [first[window], [*first, following.shards(0)[0]][window + 1]]
    assert told[-1] == following.shards(0)
    assert len(told) == 5


def test_two_processes_read_shards_of_their_own(server: ShardServer, folder: Path, tmp_path: Path) -> None:
    put_index(server, folder)
    loaders = [
        loader_of(open_corpus(spec(server), window=2, cache=tmp_path / "copies"), rank=rank, world=2)
        for rank in range(2)
    ]
    parts = [keys_of(loader) for loader in loaders]
    assert [len(part) for part in parts] == [4, 4]
    keys = [key for part in parts for batch in part for key in batch]
    assert len(set(keys)) == len(keys) == 16
    for loader in loaders:
        loader.close()


def test_local_and_compressed_and_piped_sources_together(
    server: ShardServer, folder: Path, tmp_path: Path, write_shard: WriteShard
) -> None:
    server.files["/packed/0.tar.gz"] = gzip.compress(server.files["/shards/0.tar"])
    near = write_shard(tmp_path / "near" / "0.tar", 4, start=100)
    parts = [
        {"shards": str(near), "weight": 2},
        f"{server.address}/packed/0.tar.gz",
        f"pipe:cat {folder / '2.tar'}",
    ]
    corpus = open_corpus(parts, cache=tmp_path / "copies")
    assert [(source.samples, source.weight) for source in corpus.sources] == [(4, 2), (3, 1), (2, 1)]
    loader = loader_of(corpus, batch_size=1)
    keys = sorted(key for batch in keys_of(loader) for key in batch)
    assert keys == [f"s{n:07d}" for n in (0, 1, 2, 8, 9, 100, 100, 101, 101, 102, 102, 103, 103)]
    loader.close()


def test_missing_and_broken_shards_are_skipped_and_named(
    server: ShardServer, folder: Path, tmp_path: Path
) -> None:
    del server.files["/shards/1.tar"]
    server.files["/shards/2.tar"] = b"no tar " * 1000
    corpus = open_corpus(spec(server), cache=tmp_path / "copies")
    assert corpus.layout.sources == [[3, 0, 0, 6]]
    [missing, broken] = corpus.faults
    assert missing.name == f"{server.address}/shards/1.tar"
    assert missing.reason.startswith("does not exist")
    assert (broken.name, broken.reason) == (f"{server.address}/shards/2.tar", "is not a tar")
    # It may be there the next time.
    server.files["/shards/1.tar"] = (folder / "1.tar").read_bytes()
    assert open_corpus(spec(server), cache=tmp_path / "copies").layout.sources == [[3, 5, 0, 6]]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_shard_that_goes_or_changes_later_gives_faults(
    server: ShardServer, folder: Path, tmp_path: Path, workers: int
) -> None:
    put_index(server, folder)
    loader = loader_of(open_corpus(spec(server), cache=tmp_path / "copies"), workers=workers, batch_size=1)
    del server.files["/shards/1.tar"]
    server.files["/shards/3.tar"] = server.files["/shards/0.tar"]
    batches = list(loader.epoch(0))
    assert sum(map(len, batches)) == 5
    faults = {fault.name: fault.reason for batch in batches for fault in batch.faults}
    assert set(faults) == {f"{server.address}/shards/{n}.tar" for n in (1, 3)}
    assert "does not exist" in faults[f"{server.address}/shards/1.tar"]
    assert "but its index is of" in faults[f"{server.address}/shards/3.tar"]
    # Samples of a lost shard do not ask for it one by one.
    assert server.gets("/shards/1.tar") <= 4
    loader.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_source_that_sends_nothing_is_an_error(
    server: ShardServer, folder: Path, tmp_path: Path, workers: int
) -> None:
    put_index(server, folder)
    corpus = open_corpus(spec(server), cache=tmp_path / "copies", timeout=0.5)
    for number in range(4):
        server.faults[f"/shards/{number}.tar"] = "half"
    loader = loader_of(corpus, workers=workers)
    with pytest.raises(DiffCLIPError, match="gave nothing for") as raised:
        list(loader.epoch(0))
    assert not isinstance(raised.value, InputError)
    assert server.address in str(raised.value)
    loader.close()


def test_a_copy_that_is_removed_before_it_is_opened_is_fetched_again(
    server: ShardServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_index(server, folder)
    corpus = open_corpus(spec(server), cache=tmp_path / "copies")
    attempts = []
    whole = remote_index.RemoteShards.open

    def removed_at_first(self: remote_index.RemoteShards, address: str) -> object:
        path, index = whole(self, address)
        attempts.append(address)
        if len(attempts) == 1:
            path.unlink()
        return path, index

    monkeypatch.setattr(remote_index.RemoteShards, "open", removed_at_first)
    assert corpus.read(0).key == "s0000000"
    assert len(attempts) == 2
    corpus.close()


def test_progress_of_counting_is_said(
    server: ShardServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(remote_index, "_SILENT", 0.0)
    open_corpus(spec(server), cache=tmp_path / "copies")
    [line] = capsys.readouterr().err.splitlines()
    assert line == "diffclip: fetching 4 shards to count their samples, which is done once: 1 are counted"

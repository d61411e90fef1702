import errno
import os
import shutil
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import fsspec
import pytest
import torch
from file_server import served
from given import write_shard

from diffclip.config import PreprocessConfig
from diffclip.data.check import check
from diffclip.data.loader import Batch, CaptionLoader
from diffclip.data.pairs import Pair, Pairs
from diffclip.data.remote import expand_remote, is_remote
from diffclip.data.transforms import TrainTransform
from diffclip.errors import DiffCLIPError, InputError, hide_secrets


@pytest.fixture
def site(tmp_path, monkeypatch) -> Iterator[tuple[str, list[str]]]:
    """The address of six shards of four samples each, and the paths that were fetched."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("diffclip.data.remote._PAUSES", (0.0, 0.0))
    for number in range(6):
        write_shard(tmp_path / "served" / f"{number}.tar", 4, start=4 * number)
    with served(tmp_path / "served") as server:
        yield server


def loader_of(pairs: Pairs, workers: int = 0) -> CaptionLoader:
    transform = TrainTransform(8, PreprocessConfig())
    return CaptionLoader(pairs, transform, lambda texts: torch.zeros(len(texts), 4), 4, 0, workers=workers)


def keys_of(batches: Iterator[Batch]) -> list[list[str]]:
    return [batch.keys for batch in batches]


def test_remote_addresses_are_expanded_and_their_secrets_hidden() -> None:
    assert is_remote("file:/a.tar")
    assert not any(map(is_remote, ("data/{0..9}.tar", "a:b/0.tar", "C:/0.tar")))
    assert hide_secrets("s3://me:secret@b/0.tar?key=1 fails") == "s3://…@b/0.tar?… fails"
    assert hide_secrets('{"a": "\\"https://h/0.tar?key=1\\", 2"}') == '{"a": "\\"https://h/0.tar?…\\", 2"}'
    system = fsspec.filesystem("memory")
    for name in ("10.tar", "2.tar", "notes.txt"):
        system.pipe(f"/folder/{name}", b"x")
    addresses = ["memory:///folder/2.tar", "memory:///folder/10.tar"]
    assert expand_remote("memory://folder/") == expand_remote("memory://folder/*.tar") == addresses
    assert expand_remote("memory://folder/{7..8}.tar") == ["memory://folder/7.tar", "memory://folder/8.tar"]
    for spec, words in (
        ("memory://nothing/", "does not exist"),
        ("memory://folder/x*", "no .tar shards in"),
        ("nonsense://x/", "cannot be read"),
        ("memory://folder/{0..", "unpaired braces"),
    ):
        with pytest.raises(InputError, match=words):
            expand_remote(spec)
    system.rm("/folder", recursive=True)


def test_remote_batches_match_those_of_local_shards(site: tuple[str, list[str]], tmp_path: Path) -> None:
    server, fetched = site
    local = loader_of(Pairs(str(tmp_path / "served"), window=2))
    remote = loader_of(Pairs(f"{server}/{{0..5}}.tar", window=2), workers=2)
    for epoch in (0, 1):
        assert keys_of(remote.epoch(epoch)) == keys_of(local.epoch(epoch))
    assert remote.pairs.tars.is_remote
    assert remote.pairs.tars.order_identity == local.pairs.tars.order_identity
    remote.close()
    # each shard was fetched once for all processes, epochs and openings
    assert keys_of(loader_of(Pairs(f"{server}/{{0..5}}.tar", window=2)).epoch(0)) == keys_of(local.epoch(0))
    assert [fetched.count(f"/{number}.tar") for number in range(6)] == [1] * 6


def test_indexes_beside_the_shards_allow_counting_without_fetching(site, tmp_path, monkeypatch) -> None:
    server, fetched = site
    Pairs(str(tmp_path / "served")).tars.keep_indexes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    pairs = Pairs(f"{server}/")
    assert (len(pairs), pairs.tars.window) == (24, 16)
    assert not [path for path in fetched if path.endswith(".tar")]
    assert isinstance(pairs[0], Pair)
    assert [path for path in fetched if path.endswith(".tar")] == ["/0.tar"]

    # a server that is gone or refuses ends the run instead of skipping shards
    for failure in (OSError(errno.ECONNREFUSED, "Connection refused"), PermissionError("Forbidden")):
        monkeypatch.setattr(fsspec.filesystem("http"), "get_file", Mock(side_effect=failure))
        with pytest.raises(DiffCLIPError, match="check the address and the network") as error:
            pairs[23]
        assert not isinstance(error.value, InputError)
    (tmp_path / "served" / "5.tar").unlink()
    with pytest.raises(InputError, match=r"^http\S*/5\.tar does not exist: [^\n]*$"):
        check(pairs, workers=1)


def test_an_index_of_another_shard_of_the_same_size_is_not_used(
    site: tuple[str, list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = tmp_path / "served" / "0.tar"
    Pairs(str(shard)).tars.keep_indexes()
    size = shard.stat().st_size
    write_shard(shard, 3, 50, {50: {"txt": b"a caption " * 500}})
    assert shard.stat().st_size == size
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    pairs = Pairs(f"{site[0]}/0.tar")
    samples = [pairs[i] for i in range(4)]
    assert [item.key for item in samples if isinstance(item, Pair)] == ["s0000050", "s0000051", "s0000052"]
    assert "has changed since its samples were counted" in str(samples[3])
    assert len(Pairs(f"{site[0]}/0.tar")) == 3


def test_a_changed_remote_shard_is_fetched_again(site, tmp_path) -> None:
    train = f"{site[0]}/0.tar"
    assert len(Pairs(train)) == 4
    shard = write_shard(tmp_path / "served" / "0.tar", 70)
    assert len(Pairs(train)) == 70
    before = shard.stat()
    write_shard(shard, 70, start=70)
    os.utime(shard, (before.st_atime, before.st_mtime + 2))
    assert shard.stat().st_size == before.st_size
    sample = Pairs(train)[0]
    assert isinstance(sample, Pair)
    assert sample.key == "s0000070"


def test_local_copies_stay_within_the_cache_limit(site: tuple[str, list[str]], tmp_path: Path) -> None:
    size = (tmp_path / "served" / "5.tar").stat().st_size
    cache = tmp_path / "cache"
    cache.mkdir()
    copies = [cache / f"{number:020x}.tar" for number in range(3)]
    for number, path in enumerate([*copies, cache / "mine.tar"]):
        path.write_bytes(bytes(size))
        os.utime(path, (number % 3, number % 3))
    temporaries = [cache / f".{number:08x}.tmp" for number in range(2)]
    for path in temporaries:
        path.touch()
    os.utime(temporaries[0], (0, 0))  # left by a process that was killed
    pairs = Pairs(f"{site[0]}/", window=1, cache=cache, cache_gb=7.5 * size / 1e9)
    loader = loader_of(pairs)
    assert len(keys_of(loader.epoch(0))) == 6
    loader.close()
    assert [path.exists() for path in copies] == [False, False, True]
    assert [path.exists() for path in temporaries] == [False, True]
    assert (cache / "mine.tar").exists()  # not a copy that diffclip made
    assert len(list(cache.glob("*.tar"))) == 8


def test_missing_or_broken_remote_shards_are_skipped_and_named(site, tmp_path, monkeypatch) -> None:
    server = site[0]
    (tmp_path / "served" / "2.tar").write_bytes(b"no tar")
    pairs = Pairs(f"{server}/{{0..6}}.tar")
    assert len(pairs) == 20
    assert [str(fault) for fault in pairs.tars.faults] == [
        f"{server}/2.tar is not a tar: make shards of images and captions with diffclip data make-shards",
        f"{server}/6.tar does not exist: check the address (that of a folder ends with '/')",
    ]
    cached = Pairs(f"{server}/0.tar", cache=str(tmp_path / "cache"))
    shutil.rmtree(tmp_path / "cache", ignore_errors=True)
    (tmp_path / "cache").touch()
    with pytest.raises(InputError, match="cannot write"):  # an error, not a skipped shard
        cached[0]
    send_head = SimpleHTTPRequestHandler.send_head

    def busy(self: SimpleHTTPRequestHandler) -> Any:
        return self.send_error(503) if self.path == "/1.tar" else send_head(self)

    # a server that is busy or gone ends the run instead of skipping shards
    monkeypatch.setattr(SimpleHTTPRequestHandler, "send_head", busy)
    for train, words in (
        (f"{server}/{{0..5}}.tar", r"/1\.tar cannot be read \(503"),
        (f"{server}/0.tar http://127.0.0.1:9/0.tar".split(), r":9/0\.tar cannot be read \("),
    ):
        with pytest.raises(DiffCLIPError, match=words) as raised:
            Pairs(train)
        assert not isinstance(raised.value, InputError)
        assert "\n" not in str(raised.value)


def test_a_shard_is_asked_for_again_when_the_connection_breaks(site, monkeypatch) -> None:
    server, fetched = site
    copyfile = SimpleHTTPRequestHandler.copyfile

    def cut_off(self: SimpleHTTPRequestHandler, source: Any, target: Any) -> None:
        if self.path == "/1.tar" or fetched.count("/0.tar") < 3:
            target.write(source.read(100))
        else:
            copyfile(self, source, target)

    monkeypatch.setattr(SimpleHTTPRequestHandler, "copyfile", cut_off)
    assert len(Pairs(f"{server}/0.tar")) == 4
    with pytest.raises(DiffCLIPError, match=r"/1\.tar cannot be read"):
        Pairs(f"{server}/1.tar")
    assert [fetched.count(f"/{number}.tar") for number in (0, 1)] == [3, 3]

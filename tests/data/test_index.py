import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diffclip.data import index as index_module
from diffclip.data.index import read_index
from diffclip.files import cache_folder

WriteShard = Callable[..., Path]


def test_index_is_kept_in_the_cache_folder_and_checked(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_WORTH_KEEPING", 1)
    path = write_shard(tmp_path / "0.tar", 4)
    first = read_index(path)
    kept = list((cache_home / "diffclip" / "indexes").iterdir())
    assert len(kept) == 1
    assert os.listdir(tmp_path) == ["0.tar"]
    with monkeypatch.context() as patch:
        patch.setattr(index_module, "scan", lambda path: pytest.fail("scanned again"))
        again = read_index(path)
    assert [again.key(i) for i in range(4)] == [first.key(i) for i in range(4)]
    assert [again.members(i) for i in range(4)] == [first.members(i) for i in range(4)]

    # Another file of the same size at another time is another shard.
    write_shard(path, 4, start=4)
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))
    assert read_index(path).key(0) == "s0000004"

    kept[0].write_bytes(b"damaged")
    assert read_index(path).key(0) == "s0000004"
    kept[0].write_bytes(kept[0].read_bytes()[:400])
    assert read_index(path).key(0) == "s0000004"


def test_faults_are_kept_with_the_index(
    tmp_path: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_WORTH_KEEPING", 1)
    path = write_shard(tmp_path / "0.tar", 4)
    path.write_bytes(path.read_bytes()[:3000])
    assert read_index(path).faults == read_index(path).faults != ()


def test_small_shards_leave_no_file(tmp_path: Path, cache_home: Path, write_shard: WriteShard) -> None:
    read_index(write_shard(tmp_path / "0.tar", 4))
    assert list(cache_home.iterdir()) == []


def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "_WORTH_KEEPING", 1)
    (cache_home / "diffclip").write_text("a file where the folder should be")
    assert len(read_index(write_shard(tmp_path / "0.tar", 4))) == 4


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == Path(os.environ["XDG_CACHE_HOME"]) / "diffclip"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "diffclip"

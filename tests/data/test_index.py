import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diffclip.data import index
from diffclip.data.corpus import Corpus
from diffclip.data.index import index_files, open_tar, open_tars, read_index, scan, stamp

WriteShard = Callable[..., Path]


def test_an_index_is_kept_in_the_cache_or_beside_the_shard_and_checked(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_shard(tmp_path / "0.tar", 4)
    open_tar(path)
    [kept] = (cache_home / "diffclip" / "indexes").glob("*/*")
    assert os.listdir(tmp_path) == ["0.tar"]
    # another file of the same size at another time is another shard
    write_shard(path, 4, start=4)
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))
    assert open_tar(path).key(0) == "s0000004"
    for damage in (b"damaged", kept.read_bytes()[:400], b""):
        kept.write_bytes(damage)
        assert open_tar(path).key(0) == "s0000004"
    path.write_bytes(path.read_bytes()[:4000])
    header = open_tar(path).header
    assert header.faults
    monkeypatch.setattr(index, "scan", lambda path: pytest.fail(f"{path} is scanned"))
    assert open_tar(path).header == open_tars([path], whole=False)[path].header == header
    Corpus(tmp_path).keep_indexes()
    kept.unlink()
    assert open_tar(path).header == header


def test_a_folder_that_cannot_be_written_does_not_matter(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard
) -> None:
    (cache_home / "diffclip").write_text("a file where the folder should be")
    assert len(open_tar(write_shard(tmp_path / "0.tar", 4)).table) == 4


def test_many_shards_are_scanned_by_several_processes(
    tmp_path: Path, write_shard: WriteShard, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [write_shard(tmp_path / f"{n}.tar", 1 + n % 3, start=n) for n in range(20)]
    assert {path: tar.header for path, tar in open_tars(paths).items()} == {
        path: scan(path)[0] for path in paths
    }
    assert capsys.readouterr().err.splitlines() == ["diffclip: indexing 20 shards, once"]
    assert read_index(index_files(paths[3])[1], stamp(paths[3])) is not None

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from diffclip.data import index_files, indexing
from diffclip.data.index import ShardIndex, scan, stamp
from diffclip.data.index_files import COUNTS_FILE, INDEX_FOLDER, count, load_counts, read_index
from diffclip.data.indexing import counts_of, indexes_of
from diffclip.errors import DiffCLIPError
from diffclip.files import cache_folder

WriteShard = Callable[..., Path]
WriteTar = Callable[..., Path]
NEEDED = {"picture": ("jpg", "png"), "caption": ("txt",)}


@pytest.fixture(autouse=True)
def every_shard_is_worth_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_files, "_WORTH_KEEPING", 1)


@pytest.fixture
def no_scan(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Called: from now on a scan fails the test."""

    def start() -> None:
        for module in (index_files, indexing):
            monkeypatch.setattr(module, "scan", lambda path: pytest.fail(f"{path} is scanned again"))

    return start


def same(a: ShardIndex, b: ShardIndex) -> bool:
    return len(a) == len(b) and all(
        (a.key(i), a.members(i)) == (b.key(i), b.members(i)) for i in range(len(a))
    )


def touch(path: Path) -> None:
    """Another file of the same size at another time is another shard."""
    later = time.time_ns() + 10**9
    os.utime(path, ns=(later, later))


def pipe_with_no_writer(path: Path) -> Path:
    os.mkfifo(path)
    return path


# --- for evaluation: one shard at a time, nothing beside it ---


def test_index_is_kept_in_the_cache_folder_and_checked(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard, no_scan: Callable[[], None]
) -> None:
    path = write_shard(tmp_path / "0.tar", 4)
    first = read_index(path)
    [kept] = (cache_home / "diffclip" / "indexes").glob("*/*")
    assert os.listdir(tmp_path) == ["0.tar"]

    write_shard(path, 4, start=4)
    touch(path)
    assert read_index(path).key(0) == "s0000004"

    kept.write_bytes(b"damaged")
    assert read_index(path).key(0) == "s0000004"
    kept.write_bytes(kept.read_bytes()[:400])
    assert read_index(path).key(0) == "s0000004"
    second = read_index(path)
    no_scan()
    assert same(read_index(path), second)
    assert not same(first, second)


def test_an_index_beside_the_shard_is_used(
    tmp_path: Path, write_shard: WriteShard, no_scan: Callable[[], None]
) -> None:
    path = write_shard(tmp_path / "0.tar", 4)
    [(index, _)] = indexes_of([path], 10)
    no_scan()
    assert same(read_index(path), index)


def test_faults_are_kept_with_the_index(tmp_path: Path, write_shard: WriteShard) -> None:
    path = write_shard(tmp_path / "0.tar", 4)
    path.write_bytes(path.read_bytes()[:3000])
    assert read_index(path).faults == read_index(path).faults != ()


def test_small_shards_leave_no_file(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_home))
    read_index(write_shard(tmp_path / "0.tar", 4))
    assert list(cache_home.iterdir()) == []


def test_a_cache_that_cannot_be_written_does_not_matter(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard
) -> None:
    (cache_home / "diffclip").write_text("a file where the folder should be")
    assert len(read_index(write_shard(tmp_path / "0.tar", 4))) == 4


def test_what_is_no_regular_file_is_never_opened(tmp_path: Path, write_shard: WriteShard) -> None:
    # Opening a pipe without a writer, or reading it, would wait for ever.
    pipe = pipe_with_no_writer(tmp_path / "pipe.tar")
    good = write_shard(tmp_path / "good.tar", 3)
    assert read_index(pipe).faults == ("cannot be read (it is not a regular file)",)
    assert read_index(tmp_path).faults == ("cannot be read (it is not a regular file)",)
    indexed = indexes_of([pipe, good], 10)
    assert [len(index) for index, _ in indexed] == [0, 3]
    assert counts_of([pipe, good], 10) == [counts for _, counts in indexed]
    assert set(load_counts(tmp_path / INDEX_FOLDER)) == {"good.tar"}


def test_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == Path(os.environ["XDG_CACHE_HOME"]) / "diffclip"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "diffclip"


# --- for training: many shards, indexes beside them ---


def test_counts_of_sets_of_extensions(tmp_path: Path, write_tar: WriteTar) -> None:
    members = [("a.jpg", b"1"), ("a.txt", b"2"), ("b.TXT", b"3"), ("b.jpg", b"4"), ("c.jpg", b"5")]
    members += [("d.txt", b"6"), ("d.png", b""), ("e.cls", b"7"), ("f.jpg", b"")]
    path = write_tar(tmp_path / "0.tar", members)
    counts = count(scan(path), stamp(path))
    assert counts.samples == {("jpg", "txt"): 2, ("jpg",): 1, ("txt",): 1, ("cls",): 1, (): 1}
    assert counts.usable(NEEDED) == 2
    assert counts.usable({"caption": ("json", "txt")}) == 3
    assert counts.missing(NEEDED) == [
        "holds 1 samples that have no caption",
        "holds 1 samples that have no picture",
        "holds 2 samples that have no picture and no caption",
    ]


def test_more_extensions_than_bits_in_a_word(tmp_path: Path, write_tar: WriteTar) -> None:
    members = [(f"a.{number:03d}", b"1") for number in range(150)] + [("b.149", b"1")]
    counts = count(scan(write_tar(tmp_path / "0.tar", members)), "")
    assert sorted(map(len, counts.samples)) == [1, 150]


def test_indexes_and_counts_are_kept_beside_the_shards(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard, no_scan: Callable[[], None]
) -> None:
    paths = [write_shard(tmp_path / f"{n}.tar", n + 1, changes={0: {"txt": None}}) for n in range(3)]
    first = indexes_of(paths, 10)
    assert sorted(os.listdir(tmp_path / INDEX_FOLDER)) == [
        "0.tar.npz",
        "1.tar.npz",
        "2.tar.npz",
        "counts.json",
    ]
    assert list(cache_home.iterdir()) == []
    no_scan()
    for (ours, counts), (index, found) in zip(first, indexes_of(paths, 10), strict=True):
        assert same(ours, index)
        assert counts == found
    # Counts alone are enough to count.
    for file in (tmp_path / INDEX_FOLDER).glob("*.npz"):
        file.unlink()
    assert [counts.usable(NEEDED) for counts in counts_of(paths, 10)] == [0, 1, 2]


def test_a_changed_shard_is_indexed_anew(tmp_path: Path, write_shard: WriteShard) -> None:
    paths = [write_shard(tmp_path / f"{n}.tar", 2) for n in range(2)]
    counts_of(paths, 10)
    write_shard(paths[1], 3)
    touch(paths[1])
    assert [counts.usable(NEEDED) for counts in counts_of(paths, 10)] == [2, 3]
    assert [len(index) for index, _ in indexes_of(paths, 10)] == [2, 3]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b'{"format": 0, "shards": {}}',
        b'{"format": 1, "shards": [1]}',
        b'{"format": 1, "shards": {"0.tar": {"stamp": "1 1", "samples": [[["jpg"]]], "faults": []}}}',
        b"\xff\xfe",
    ],
)
def test_damaged_counts_are_made_anew(tmp_path: Path, write_shard: WriteShard, content: bytes) -> None:
    path = write_shard(tmp_path / "0.tar", 2)
    file = tmp_path / INDEX_FOLDER / COUNTS_FILE
    counts_of([path], 10)
    whole = file.read_bytes()
    file.write_bytes(content)
    assert counts_of([path], 10)[0].usable(NEEDED) == 2
    assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_indexed_in_the_cache(
    tmp_path: Path, cache_home: Path, write_shard: WriteShard, no_scan: Callable[[], None]
) -> None:
    path = write_shard(tmp_path / "0.tar", 2)
    (tmp_path / INDEX_FOLDER).write_text("a file where the folder should be")
    [(index, counts)] = indexes_of([path], 10)
    names = sorted(file.name for file in cache_home.glob("diffclip/indexes/*/*"))
    assert names == ["0.tar.npz", COUNTS_FILE]
    no_scan()
    assert same(indexes_of([path], 10)[0][0], index)
    assert counts_of([path], 10) == [counts]


def test_many_shards_are_scanned_by_several_processes(tmp_path: Path, write_shard: WriteShard) -> None:
    paths = [write_shard(tmp_path / f"{n}.tar", 1 + n % 3, start=n) for n in range(20)]
    indexed = indexes_of(paths, 60)
    for path, (index, counts) in zip(paths, indexed, strict=True):
        assert same(index, scan(path))
        assert counts == count(index, stamp(path))
    assert counts_of(paths, 60) == [counts for _, counts in indexed]


def test_progress_is_said_where_it_takes_long(
    tmp_path: Path,
    write_shard: WriteShard,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    paths = [write_shard(tmp_path / f"{n}.tar", 1) for n in range(2)]
    counts_of(paths, 10)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(indexing, "_SILENT", 0.0)
    counts_of([write_shard(tmp_path / f"{n}.tar", 1) for n in range(5, 8)], 10)
    [line] = capsys.readouterr().err.splitlines()
    assert line == "diffclip: indexing 3 shards, which is done once: 1 are ready"


def _never_ends(path: Path) -> None:
    # Not even a signal to end, as a read of a disk that does not answer.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(1000)


def test_a_disk_that_does_not_answer_is_an_error(
    tmp_path: Path, write_shard: WriteShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [write_shard(tmp_path / f"{n}.tar", 1) for n in range(12)]
    monkeypatch.setattr(indexing, "_make_counts", _never_ends)
    with pytest.raises(DiffCLIPError, match=r"0\.tar could not be read for 0\.3 seconds"):
        counts_of(paths, 0.3)


def _build(paths: list[Path]) -> None:
    index_files._WORTH_KEEPING = 1
    while True:
        for path in paths:
            touch(path)
        counts_of(paths, 60)


def test_builders_at_the_same_time_and_kills_leave_nothing_damaged(
    tmp_path: Path, write_shard: WriteShard
) -> None:
    paths = [write_shard(tmp_path / f"{n}.tar", 5) for n in range(3)]
    context = multiprocessing.get_context("fork")
    for delay in (0.02, 0.05, 0.11, 0.2, 0.3):
        builders = [context.Process(target=_build, args=(paths,)) for _ in range(2)]
        for builder in builders:
            builder.start()
        time.sleep(delay)
        for builder in builders:
            builder.kill()
            builder.join()
        for file in (tmp_path / INDEX_FOLDER).glob("[!.]*"):
            if file.name == COUNTS_FILE:
                assert json.loads(file.read_bytes())["shards"]
            else:
                assert len(read_index(tmp_path / file.stem)) == 5
        assert [counts.usable(NEEDED) for counts in counts_of(paths, 60)] == [5, 5, 5]

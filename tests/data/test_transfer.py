import bz2
import gzip
import importlib.util
import lzma
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from shard_server import ShardServer, serving

from diffclip.data.remote import (
    expand_remote,
    fetch,
    remote_stamp,
)
from diffclip.errors import DiffCLIPError, InputError

CONTENT = bytes(range(256)) * 400
PATIENT = 60.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    with serving(monkeypatch) as server:
        server.files["/0.tar"] = CONTENT
        yield server


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("name", ["/1.tar.gz", "/1.tar"])
def test_packed_shards_are_unpacked_whatever_their_name(
    server: ShardServer, tmp_path: Path, pack: object, name: str
) -> None:
    # Two streams, as parallel packers write them, and padding.
    server.files[name] = pack(CONTENT) + pack(b"more") + bytes(8)  # type: ignore[operator]
    fetch(f"{server.address}{name}", tmp_path / "copy", PATIENT)
    assert (tmp_path / "copy").read_bytes() == CONTENT + b"more"
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_zstandard_is_unpacked(server: ShardServer, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    packed = zstandard.ZstdCompressor().compress(CONTENT)
    server.files["/1.tar.zst"] = packed + packed
    fetch(f"{server.address}/1.tar.zst", tmp_path / "copy", PATIENT)
    assert (tmp_path / "copy").read_bytes() == CONTENT + CONTENT
    server.files["/1.tar.zst"] = packed[:-20]
    with pytest.raises(DiffCLIPError, match="cut short"):
        fetch(f"{server.address}/1.tar.zst", tmp_path / "copy", PATIENT)


@pytest.mark.skipif(importlib.util.find_spec("zstandard") is not None, reason="zstandard is there")
def test_the_package_that_unpacking_needs_is_named(server: ShardServer, tmp_path: Path) -> None:
    server.files["/1.tar.zst"] = b"\x28\xb5\x2f\xfd" + bytes(20)
    with pytest.raises(InputError, match=r"1.tar.zst needs zstandard, which .* pip install zstandard"):
        fetch(f"{server.address}/1.tar.zst", tmp_path / "copy", PATIENT)


def test_a_packed_file_that_is_cut_is_never_taken_for_whole(server: ShardServer, tmp_path: Path) -> None:
    server.files["/1.tar.gz"] = gzip.compress(CONTENT)[:-9]
    with pytest.raises(DiffCLIPError, match="cut short"):
        fetch(f"{server.address}/1.tar.gz", tmp_path / "copy", PATIENT)


def test_files_by_address(tmp_path: Path) -> None:
    file = tmp_path / "my shards" / "0.tar"
    file.parent.mkdir()
    file.write_bytes(CONTENT)
    for url in (f"file://{file}", f"file:{file}"):
        fetch(url, tmp_path / "copy", PATIENT)
        assert (tmp_path / "copy").read_bytes() == CONTENT
    before = remote_stamp(f"file://{file}")
    os.utime(file, (1, 1))
    assert remote_stamp(f"file://{file}") != before
    with pytest.raises(InputError, match=r"my shards/1.tar does not exist"):
        fetch(f"file://{tmp_path}/my shards/1.tar", tmp_path / "copy", PATIENT)
    with pytest.raises(InputError, match=r"it is a folder, whose name must end with '/'"):
        fetch(f"file://{tmp_path}/my shards", tmp_path / "copy", PATIENT)
    assert expand_remote(f"file://{tmp_path}/my shards/") == [f"file://{file}"]


def test_pipes(tmp_path: Path) -> None:
    file = tmp_path / "0.tar"
    file.write_bytes(gzip.compress(CONTENT))
    assert fetch(f"pipe:cat '{file}' | gzip -d", tmp_path / "copy", PATIENT) == ("", True)
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert remote_stamp("pipe:cat no.tar") == ""


def test_a_pipe_that_fails_says_its_last_line(tmp_path: Path) -> None:
    command = "pipe:echo half; echo first >&2; echo 'the bucket is gone' >&2; exit 7"
    with pytest.raises(DiffCLIPError, match=r"pipe:echo failed \(exit code 7: the bucket is gone\)"):
        fetch(command, tmp_path / "copy", PATIENT)


def test_a_pipe_that_sleeps_is_ended_with_all_it_started(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "open")
    reading = os.open(tmp_path / "open", os.O_RDONLY | os.O_NONBLOCK)
    # The shell starts another process, which must not stay behind: what it holds open ends with it.
    command = f"pipe:echo begin; sh -c 'echo x; exec sleep 600' > {tmp_path}/open; cat 0.tar"
    with pytest.raises(DiffCLIPError, match=r"pipe:echo … 0.tar gave nothing for 4 seconds"):
        fetch(command, tmp_path / "copy", 4.0)
    os.set_blocking(reading, True)
    with os.fdopen(reading, "rb") as held:
        assert held.read() == b"x\n"


def test_a_slow_pipe_that_gives_something_is_waited_for(tmp_path: Path) -> None:
    command = (
        f"pipe:{sys.executable} -c 'import time\nfor i in range(12): print(i, flush=True); time.sleep(0.5)'"
    )
    fetch(command, tmp_path / "copy", 5.0)
    assert (tmp_path / "copy").read_text().split() == [str(number) for number in range(12)]


def test_protocols_that_are_unknown_or_need_a_package(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"htps://h/0.tar .*unknown protocol 'htps': did you mean 'https'"):
        fetch("htps://h/0.tar", tmp_path / "copy", PATIENT)
    if importlib.util.find_spec("s3fs") is None:
        with pytest.raises(InputError, match=r"s3://b/ needs s3fs, .*pip install s3fs"):
            expand_remote("s3://b/")
        with pytest.raises(InputError, match=r"s3://b/0.tar needs s3fs, .*pip install s3fs"):
            fetch("s3://b/0.tar", tmp_path / "copy", PATIENT)

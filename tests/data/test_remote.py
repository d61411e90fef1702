import gzip
import socket
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest
from shard_server import ShardServer, serving

from diffclip.data.remote import (
    base_name,
    expand_remote,
    fetch,
    is_remote,
    read_beside,
    remote_stamp,
    remote_stamps,
    shown,
)
from diffclip.data.remote_child import StoppedError
from diffclip.errors import DiffCLIPError, InputError

CONTENT = bytes(range(256)) * 400
PATIENT = 60.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    with serving(monkeypatch) as server:
        server.files["/0.tar"] = CONTENT
        yield server


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    for name in ("10.tar", "2.tar", "1.tar.gz", "notes.txt"):
        system.pipe(f"/folder/{name}", b"x")
    yield system
    system.rm("/folder", recursive=True)


def test_what_is_remote() -> None:
    for spec in ("https://h/0.tar", "s3://b/", "hf://datasets/u/r/0.tar", "file:/a.tar", "pipe:cat a.tar"):
        assert is_remote(spec)
    assert is_remote("simplecache::s3://b/0.tar")
    for spec in ("/data/0.tar", "data/{0..9}.tar", "0.tar", "a:b/0.tar", "C:/0.tar", ""):
        assert not is_remote(spec)


def test_a_file_is_fetched_whole(server: ShardServer, tmp_path: Path) -> None:
    stamp, copied = fetch(f"{server.address}/0.tar", tmp_path / "copy", PATIENT)
    assert copied
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert stamp == remote_stamp(f"{server.address}/0.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["copy"]


def test_what_is_known_is_not_fetched_again(server: ShardServer, tmp_path: Path) -> None:
    url = f"{server.address}/0.tar"
    before = remote_stamp(url)
    assert fetch(url, tmp_path / "copy", PATIENT, known=before) == (before, False)
    assert not (tmp_path / "copy").exists()
    server.files["/0.tar"] = CONTENT[::-1]
    assert fetch(url, tmp_path / "copy", PATIENT, known=before)[1]
    assert remote_stamp(url) != before


@pytest.mark.parametrize("fault", ["silent", "half"])
def test_a_server_that_sends_nothing_more_is_an_error(
    server: ShardServer, tmp_path: Path, fault: str
) -> None:
    server.faults["/0.tar"] = fault
    with pytest.raises(DiffCLIPError, match=r"127.0.0.1:\d+/0.tar gave nothing for 1.5 seconds") as caught:
        fetch(f"{server.address}/0.tar", tmp_path / "copy", 1.5)
    assert not isinstance(caught.value, InputError)


def test_a_connection_that_is_never_made_is_an_error(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        callers = [socket.socket() for _ in range(4)]
        for caller in callers:
            caller.setblocking(False)
            caller.connect_ex(address)
        with pytest.raises(DiffCLIPError, match=r"/0.tar gave nothing for 1 seconds"):
            fetch(f"http://127.0.0.1:{address[1]}/0.tar", tmp_path / "copy", 1.0)
        for caller in callers:
            caller.close()


def test_one_that_cannot_be_reached_is_an_error_after_all_attempts(
    server: ShardServer, tmp_path: Path
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/0.tar"
        with pytest.raises(DiffCLIPError, match=r"/0.tar is lost after 4 attempts \(.+\): check the network"):
            fetch(url, tmp_path / "copy", PATIENT)


@pytest.mark.parametrize("faults", [["cut", "cut"], ["reset", "reset"], [503, 503, 503], [429, 500]])
def test_what_passes_is_tried_again_from_the_start(
    server: ShardServer, tmp_path: Path, faults: list[str | int]
) -> None:
    server.faults["/0.tar"] = faults
    fetch(f"{server.address}/0.tar", tmp_path / "copy", PATIENT)
    assert (tmp_path / "copy").read_bytes() == CONTENT
    assert not faults


@pytest.mark.parametrize("fault", ["cut", "reset", 503])
def test_what_does_not_pass_is_an_error(server: ShardServer, tmp_path: Path, fault: str | int) -> None:
    server.faults["/0.tar"] = fault
    with pytest.raises(DiffCLIPError, match=r"/0.tar is lost after 4 attempts") as caught:
        fetch(f"{server.address}/0.tar", tmp_path / "copy", PATIENT)
    assert not isinstance(caught.value, InputError)
    assert len(server.requests) >= 4


@pytest.mark.parametrize(
    ("status", "message"),
    [
        (404, "/0.tar does not exist: check the address"),
        (
            403,
            "no permission to read http://.*/0.tar .403 Forbidden.: check the address and your credentials",
        ),
        (401, "no permission to read"),
        (400, "/0.tar cannot be read .400 Bad Request."),
    ],
)
def test_what_the_server_refuses_is_the_users_to_mend(
    server: ShardServer, tmp_path: Path, status: int, message: str
) -> None:
    server.faults["/0.tar"] = status
    with pytest.raises(InputError, match=message):
        fetch(f"{server.address}/0.tar", tmp_path / "copy", PATIENT)
    with pytest.raises(InputError, match=message):
        remote_stamp(f"{server.address}/0.tar")
    assert server.gets("/0.tar") == 2


def test_many_stamps_say_each_what_is_wrong(server: ShardServer) -> None:
    server.files["/1.tar"] = CONTENT[:100]
    server.faults["/2.tar"] = 403
    first, missing, second, refused = remote_stamps(
        [f"{server.address}/{name}" for name in ("0.tar", "no.tar", "1.tar", "2.tar")]
    )
    assert isinstance(first, str)
    assert isinstance(second, str)
    assert first != second
    assert isinstance(missing, InputError)
    assert "no.tar does not exist" in str(missing)
    assert "no permission" in str(refused)
    assert remote_stamps([]) == []


def test_a_fetch_can_be_stopped(tmp_path: Path) -> None:
    with pytest.raises(StoppedError):
        fetch("pipe:sleep 600", tmp_path / "copy", PATIENT, stopped=lambda: True)


def test_ranges_are_expanded() -> None:
    assert expand_remote("https://h/{008..010}.tar") == [f"https://h/{n}.tar" for n in ("008", "009", "010")]
    assert expand_remote("pipe:aws s3 cp s3://b/{0..1}.tar - ") == [
        f"pipe:aws s3 cp s3://b/{n}.tar - " for n in (0, 1)
    ]
    with pytest.raises(InputError, match="do not pair"):
        expand_remote("https://h/{0..9.tar")


def test_folders_and_patterns_are_listed_in_natural_order(
    server: ShardServer, memory: fsspec.AbstractFileSystem
) -> None:
    assert expand_remote("memory://folder/") == [
        f"memory:///folder/{n}" for n in ("1.tar.gz", "2.tar", "10.tar")
    ]
    assert expand_remote("memory://folder/*.tar") == ["memory:///folder/2.tar", "memory:///folder/10.tar"]
    server.files |= {f"/train/{n}": CONTENT for n in ("10.tar", "9.tar", "b%20c.tar", "index.html")}
    served = [f"{server.address}/train/{n}" for n in ("9.tar", "10.tar", "b%20c.tar")]
    assert expand_remote(f"{server.address}/train/") == served
    assert expand_remote(f"{server.address}/train/*.tar") == served
    assert expand_remote(f"{server.address}/{{train,train}}/") == 2 * served


def test_folders_without_shards_and_places_that_are_not_there(
    server: ShardServer, memory: fsspec.AbstractFileSystem
) -> None:
    server.files["/empty/readme.txt"] = b"x"
    server.faults["/none/"] = 404
    with pytest.raises(InputError, match=r"no .tar shards in http://.*/empty/"):
        expand_remote(f"{server.address}/empty/")
    with pytest.raises(InputError, match=r"no .tar shards in memory://folder/x\*.tar"):
        expand_remote("memory://folder/x*.tar")
    with pytest.raises(InputError, match=r"/none/ does not exist"):
        expand_remote(f"{server.address}/none/")


def test_files_beside_shards(server: ShardServer) -> None:
    server.files["/index/counts.json"] = b"{}"
    # Stays as it is: whoever wrote it knows what it is.
    server.files["/index/0.gz"] = gzip.compress(b"x")
    server.faults["/index/secret"] = 403
    assert read_beside(f"{server.address}/index", "counts.json") == b"{}"
    assert read_beside(f"{server.address}/index/", "0.gz") == server.files["/index/0.gz"]
    assert read_beside(f"{server.address}/index", "none.json") is None
    assert read_beside(f"{server.address}/index", "secret") is None
    assert read_beside("pipe:cat", "counts.json") is None
    server.faults["/index/counts.json"] = "cut"
    with pytest.raises(DiffCLIPError, match="lost"):
        read_beside(f"{server.address}/index", "counts.json")


def test_secrets_are_not_shown(server: ShardServer, tmp_path: Path) -> None:
    assert shown("https://me:pass@word@h:8/a/0.tar?X-Amz-Signature=secret") == "https://…@h:8/a/0.tar?…"
    assert shown("cannot GET 'https://me:pw@h/0.tar?sig=a', url='s3://b/1.tar'") == (
        "cannot GET 'https://…@h/0.tar?…', url='s3://b/1.tar'"
    )
    command = "pipe:TOKEN=abc curl -u me:pw -H 'Authorization: Bearer xyz' https://h/0.tar?key=k | cat"
    assert shown(command) == "pipe:curl … 0.tar"
    assert base_name("https://me:pw@h/a/0 1.tar.gz?X-Amz-Signature=secret") == "0_1.tar"
    assert base_name(command) == "0.tar"
    assert base_name("pipe:produce") == "pipe.tar"
    assert base_name("s3://b/shards/00.TGZ") == "00.tar"
    host = server.address.removeprefix("http://")
    for fault, wanted in ((403, "no permission"), (404, "does not exist"), (503, "is lost"), (400, "cannot")):
        server.faults["/0.tar"] = fault
        with pytest.raises(DiffCLIPError, match=wanted) as caught:
            fetch(f"http://me:pw@{host}/0.tar?sig=secret", tmp_path / "copy", PATIENT)
        assert f"http://…@{host}/0.tar?…" in str(caught.value)
        assert "secret" not in str(caught.value)
        assert "pw" not in str(caught.value)

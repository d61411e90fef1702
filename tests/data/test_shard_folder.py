import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shard_copies import PATIENT, addresses, copies, making_caches, serving_six, wait_for
from shard_server import ShardServer

from diffclip.data.shard_cache import ShardCache
from diffclip.data.shard_folder import acquire, release
from diffclip.errors import DiffCLIPError

FORK = multiprocessing.get_context("fork")


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    with serving_six(monkeypatch) as server:
        yield server


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., ShardCache]]:
    with making_caches(tmp_path) as make:
        yield make


def _fetch(cache: ShardCache, url: str, results: "multiprocessing.Queue[str]") -> None:
    try:
        results.put(cache.path(url).read_bytes().hex())
    except DiffCLIPError as error:
        results.put(f"{type(error).__name__}: {error}")


def _several(cache: ShardCache, url: str, count: int) -> list[str]:
    """What `count` processes get that ask for `url` at once."""
    results = FORK.Queue()
    processes = [FORK.Process(target=_fetch, args=(cache, url, results)) for _ in range(count)]
    for process in processes:
        process.start()
    got = [results.get() for _ in processes]
    for process in processes:
        process.join()
    return got


def test_processes_that_ask_at_once_fetch_once(server: ShardServer, make: Callable[..., ShardCache]) -> None:
    server.files["/big.tar"] = os.urandom(1 << 20)
    got = _several(make(), f"{server.address}/big.tar", 5)
    assert got == [server.files["/big.tar"].hex()] * 5
    assert server.gets("/big.tar") == 1


def test_processes_that_ask_at_once_wait_once_for_a_stalled_one(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    server.faults["/3.tar"] = "half"
    got = _several(make(stall=5.0), f"{server.address}/3.tar", 4)
    assert len(set(got)) == 1
    assert got[0].startswith("DiffCLIPError")
    assert "/3.tar gave nothing for 5 seconds" in got[0]
    assert server.gets("/3.tar") <= 1


def test_one_that_is_killed_while_it_fetches_leaves_the_turn_and_nothing_else(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    cache = make(limit=10**7)
    server.files["/3.tar"] = os.urandom(1 << 20)
    server.faults["/3.tar"] = ["half"]
    url = f"{server.address}/3.tar"
    process = FORK.Process(target=_fetch, args=(cache, url, FORK.Queue()))
    process.start()
    server.arrived.acquire()
    wait_for(lambda: any(path.stat().st_size for path in cache.folder.glob(".*.part-*")))
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert list(cache.folder.glob(".*.lock"))
    assert copies(cache.folder) == []
    copy = cache.path(url)
    assert copy.read_bytes() == server.files["/3.tar"]
    assert {path.name for path in cache.folder.iterdir()} == {copy.name, f".{copy.name[:16]}.note"}


def test_leftovers_of_fetches_that_nobody_goes_on_with_are_removed(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    cache = make()
    cache.folder.mkdir()
    (cache.folder / f".{'a' * 16}.part-1").write_bytes(b"half")
    (cache.folder / f".{'a' * 16}.lock").touch()
    (cache.folder / f".{'b' * 16}.note").write_text("{}")
    (cache.folder / f".list-{'c' * 32}").write_text("a" * 16)
    (cache.folder / "mine.tar").write_bytes(b"someone's")
    held = acquire(cache.folder / f".{'d' * 16}.lock")
    assert held is not None
    (cache.folder / f".{'d' * 16}.part-1").write_bytes(b"going on")
    cache.ahead([])
    cache.close()
    assert sorted(path.name for path in cache.folder.iterdir()) == [
        f".{'d' * 16}.lock",
        f".{'d' * 16}.part-1",
        "mine.tar",
    ]
    release(cache.folder / f".{'d' * 16}.lock", held)


def test_a_holder_that_stands_still_is_not_waited_for_without_end(
    server: ShardServer, make: Callable[..., ShardCache], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("diffclip.data.shard_cache.PAUSES", (0.1,))
    cache = make(stall=0.4)
    url = f"{server.address}/3.tar"
    patient = make()
    lock = cache.folder / f".{patient.path(url).name[:16]}.lock"
    patient.close()
    held = acquire(lock)
    assert held is not None
    with pytest.raises(DiffCLIPError, match=r"/3.tar gave nothing for 0.5 seconds to the process"):
        cache.path(url)
    release(lock, held)


def _list_and_wait(folder: Path, url: str, ready: "multiprocessing.Queue[int]") -> None:
    cache = ShardCache(folder, None, PATIENT)
    cache.ahead([url])
    cache.path(url)
    ready.put(1)
    time.sleep(600)


def test_what_another_process_reads_stays_until_that_is_gone(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    cache, ready = make(), FORK.Queue()
    other = FORK.Process(target=_list_and_wait, args=(cache.folder, addresses(server, 1)[0], ready))
    other.start()
    ready.get()
    cache.path(addresses(server, 0)[0])
    cache.ahead([])
    assert copies(cache.folder) == ["1.tar"]
    os.kill(other.pid or 0, signal.SIGKILL)
    other.join()
    cache.ahead([])
    assert copies(cache.folder) == []

import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from shard_copies import addresses, copies, making_caches, serving_six, wait_for
from shard_server import ShardServer
from torch.utils.data import DataLoader, Dataset

from diffclip.data.shard_cache import ShardCache
from diffclip.errors import InputError


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    with serving_six(monkeypatch) as server:
        yield server


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., ShardCache]]:
    with making_caches(tmp_path) as make:
        yield make


def test_a_copy_is_fetched_once_and_kept(server: ShardServer, make: Callable[..., ShardCache]) -> None:
    cache = make(limit=10**6)
    first = cache.path(f"{server.address}/3.tar")
    assert first.read_bytes() == server.files["/3.tar"]
    assert re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]{8}-3\.tar", first.name)
    asked = len(server.requests)
    assert cache.path(f"{server.address}/3.tar") == first
    assert pickle.loads(pickle.dumps(cache)).path(f"{server.address}/3.tar") == first
    assert len(server.requests) == asked
    cache.close()
    again = make(limit=10**6)
    assert again.path(f"{server.address}/3.tar") == first
    assert server.gets("/3.tar") == 1


def test_a_shard_that_was_replaced_is_fetched_anew(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    first = make(limit=10**6).path(f"{server.address}/3.tar")
    server.files["/3.tar"] = b"new" * 100
    second = make(limit=10**6).path(f"{server.address}/3.tar")
    assert second != first
    assert second.read_bytes() == b"new" * 100
    assert not first.exists()


def test_shards_of_one_name_are_not_confused(server: ShardServer, make: Callable[..., ShardCache]) -> None:
    server.files["/other/3.tar"] = b"other"
    cache = make()
    paths = [cache.path(f"{server.address}{place}/3.tar") for place in ("", "/other")]
    assert [path.read_bytes() for path in paths] == [server.files["/3.tar"], b"other"]


def test_secrets_are_in_no_name(server: ShardServer, make: Callable[..., ShardCache]) -> None:
    cache = make()
    host = server.address.removeprefix("http://")
    cache.path(f"http://me:hidden@{host}/3.tar?X-Amz-Signature=hidden")
    for path in cache.folder.iterdir():
        assert "hidden" not in path.name + path.read_text(errors="replace")


def test_a_pipe_is_run_anew_in_each_run(tmp_path: Path, make: Callable[..., ShardCache]) -> None:
    url = f"pipe:echo x >> {tmp_path}/log; cat {tmp_path}/log"
    cache = make(limit=10**6)
    assert cache.path(url) == cache.path(url)
    assert make(limit=10**6).path(url).read_text().split() == ["x", "x"]


def test_a_failure_is_not_kept(server: ShardServer, make: Callable[..., ShardCache]) -> None:
    cache = make()
    server.faults["/3.tar"] = 404
    with pytest.raises(InputError, match=r"/3.tar does not exist"):
        cache.path(f"{server.address}/3.tar")
    server.faults.clear()
    assert cache.path(f"{server.address}/3.tar").read_bytes() == server.files["/3.tar"]


def test_reading_ahead(server: ShardServer, make: Callable[..., ShardCache]) -> None:
    cache = make()
    server.faults["/1.tar"] = 404
    cache.ahead(addresses(server, 2, 1, 0, 3))
    wait_for(lambda: copies(cache.folder) == ["0.tar", "2.tar", "3.tar"])
    order = [path for command, path in server.requests if command == "GET"]
    assert [path for path in order if path != "/1.tar"] == ["/2.tar", "/0.tar", "/3.tar"]
    with pytest.raises(InputError, match=r"/1.tar does not exist"):
        cache.path(addresses(server, 1)[0])
    before = cache.path(addresses(server, 2)[0]).open("rb")
    cache.ahead(addresses(server, 3, 4))
    assert "2.tar" not in copies(cache.folder)
    assert before.read() == server.files["/2.tar"]
    before.close()
    wait_for(lambda: copies(cache.folder) == ["3.tar", "4.tar"])
    assert server.gets("/3.tar") == 1
    cache.close()
    assert list(cache.folder.iterdir()) == []


def test_a_new_list_ends_what_is_no_longer_wanted(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    cache = make()
    server.faults["/0.tar"] = "half"
    cache.ahead(addresses(server, 0, 1))
    server.arrived.acquire()
    cache.ahead(addresses(server, 2))
    wait_for(lambda: copies(cache.folder) == ["2.tar"])
    assert not list(cache.folder.glob(".*.part*"))


def test_close_ends_at_once_in_the_middle_of_a_fetch(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    cache = make(stall=600.0)
    server.faults["/0.tar"] = "silent"
    cache.ahead(addresses(server, 0))
    server.arrived.acquire()
    cache.close()
    assert "shards ahead" not in [thread.name for thread in threading.enumerate()]
    assert list(cache.folder.iterdir()) == []
    cache.close()


def test_above_the_limit_the_oldest_go_but_none_that_is_listed(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    cache = make(limit=3500)
    for url in addresses(server, 0, 1, 2):
        cache.path(url)
        time.sleep(0.02)
    cache.ahead(addresses(server, 0, 3))
    wait_for(lambda: copies(cache.folder) == ["0.tar", "2.tar", "3.tar"])
    cache.path(addresses(server, 4)[0])
    assert copies(cache.folder) == ["0.tar", "3.tar", "4.tar"]
    cache.close()
    assert copies(cache.folder) == ["0.tar", "3.tar", "4.tar"]


def test_reading_ahead_goes_as_far_as_the_limit(server: ShardServer, make: Callable[..., ShardCache]) -> None:
    cache = make(limit=2000)
    cache.ahead(addresses(server, 0, 1, 2, 3))
    wait_for(lambda: copies(cache.folder) == ["0.tar", "1.tar"])
    # What is needed now is fetched all the same.
    assert cache.path(addresses(server, 3)[0]).read_bytes() == server.files["/3.tar"]
    cache.ahead(addresses(server, 2, 3, 4))
    wait_for(lambda: copies(cache.folder) == ["2.tar", "3.tar"])
    assert server.gets("/3.tar") == 1


class _Sizes(Dataset[int]):
    def __init__(self, cache: ShardCache, urls: list[str]) -> None:
        self.cache, self.urls = cache, urls

    def __len__(self) -> int:
        return len(self.urls)

    def __getitem__(self, i: int) -> int:
        size = self.cache.path(self.urls[i]).stat().st_size
        # A worker's close must not take the copies from the others.
        self.cache.close()
        return size


def test_data_workers_share_what_the_main_process_fetches(
    server: ShardServer, make: Callable[..., ShardCache]
) -> None:
    cache, urls = make(), addresses(server, 0, 1, 2, 3, 4, 5)
    for _ in range(2):
        cache.ahead(urls)
        loader = DataLoader(_Sizes(cache, urls), batch_size=2, num_workers=2, multiprocessing_context="fork")
        assert [size for batch in loader for size in batch.tolist()] == [1000] * 6
    assert all(server.gets(f"/{number}.tar") == 1 for number in range(6))
    with pytest.raises(RuntimeError, match="only the process"):
        pickle.loads(pickle.dumps(cache)).ahead(urls)


def test_a_folder_that_cannot_be_made_is_the_users_to_mend(
    server: ShardServer, make: Callable[..., ShardCache], tmp_path: Path
) -> None:
    (tmp_path / "copies").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot write .*copies: a file or folder of that name is in the"):
        make().path(addresses(server, 0)[0])
    with pytest.raises(InputError, match=r"cannot write .*copies"):
        make().ahead(addresses(server, 0))

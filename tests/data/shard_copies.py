"""What the tests of copies of remote shards share: a server of six shards, caches that are closed, waiting."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from shard_server import ShardServer, serving

from diffclip.data.shard_cache import ShardCache

PATIENT = 60.0


@contextmanager
def serving_six(monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardServer]:
    """A server of 0.tar to 5.tar, a thousand bytes each."""
    with serving(monkeypatch) as server:
        for number in range(6):
            server.files[f"/{number}.tar"] = bytes([number]) * 1000
        yield server


@contextmanager
def making_caches(root: Path) -> Iterator[Callable[..., ShardCache]]:
    """A function that makes caches in folders below `root`."""
    made = []

    def cache(limit: int | None = None, stall: float = PATIENT, folder: str = "copies") -> ShardCache:
        made.append(ShardCache(root / folder, limit, stall))
        return made[-1]

    yield cache
    for one in made:
        one.close()


def copies(folder: Path) -> list[str]:
    """The names of the shards of which there are copies."""
    return sorted(path.name.split("-", 2)[2] for path in folder.glob("[!.]*"))


def wait_for(ready: Callable[[], bool]) -> None:
    """Return when `ready` says so."""
    while not ready():
        time.sleep(0.02)


def addresses(server: ShardServer, *numbers: int) -> list[str]:
    """Where the server has these shards."""
    return [f"{server.address}/{number}.tar" for number in numbers]

"""One database opened by several, in whatever state a process has left it."""

import shutil
import sqlite3
import threading
from contextlib import closing
from multiprocessing import get_context

import pytest

from diffclip.errors import InputError
from diffclip.search import opening
from diffclip.search.store import DATABASE, Store


def open_store(place):
    return Store(place, "/pictures", "m", "label", 4)


@pytest.fixture
def place(tmp_path):
    folder = tmp_path / "index"
    folder.mkdir()
    return folder


def test_several_processes_make_one_index_at_once(tmp_path):
    processes, places = 4, 12
    fork = get_context("fork")
    together, identities = fork.Barrier(processes), fork.SimpleQueue()

    def make():
        try:
            for number in range(places):
                together.wait()
                store = open_store(tmp_path / str(number))
                identities.put((number, store.identity))
                store.close()
        except BaseException:
            together.abort()
            raise

    started = [fork.Process(target=make) for _ in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0] * processes
    found = [identities.get() for _ in range(processes * places)]
    assert len(set(found)) == places


def test_a_hot_journal_is_rolled_back(place, tmp_path):
    """As a process leaves it that is killed while it makes the database."""
    with closing(sqlite3.connect(tmp_path / DATABASE, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size = 1")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE half (data BLOB)")
        for _ in range(50):
            connection.execute("INSERT INTO half VALUES (zeroblob(4000))")
        for name in (DATABASE, f"{DATABASE}-journal"):
            shutil.copy(tmp_path / name, place / name)
    assert (place / DATABASE).stat().st_size > 0
    assert (place / f"{DATABASE}-journal").read_bytes()[:1] != b"\0"
    for _ in range(2):
        with closing(open_store(place)) as store:
            assert len(store) == 0
    assert not (place / f"{DATABASE}-journal").exists()


def test_a_process_killed_with_a_journal_that_holds_nothing(place):
    (place / DATABASE).touch()
    (place / f"{DATABASE}-journal").touch()
    with closing(open_store(place)) as store:
        assert len(store) == 0


def test_a_database_that_another_holds_is_waited_for(place, monkeypatch):
    with closing(sqlite3.connect(place / DATABASE, isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with monkeypatch.context() as patched:
            patched.setattr(opening, "_PATIENCE", 0.02)
            with pytest.raises(InputError, match="another program holds the index"):
                open_store(place)
        release = threading.Timer(0.1, other.execute, ["COMMIT"])
        release.start()
        with closing(open_store(place)) as store:
            assert len(store) == 0
        release.join()

import sqlite3
from pathlib import Path

import numpy as np
import pytest

from diffclip.errors import InputError
from diffclip.search.scan import Entry, Unreadable
from diffclip.search.store import DATABASE, Outcome, Store

WIDTH = 4


@pytest.fixture
def place(tmp_path):
    return tmp_path / "index"


def open_store(place, folder="/pictures", model="m", width=WIDTH):
    return Store(place, folder, model, f"label of {model}", width)


def bring(store, entries, unreadable=(), size=3, broken=(), passing=()):
    """Update a store with made vectors, which hold the files' sizes; returns what was pending, and what went."""
    assert sum(store.note(entries)) == len(entries)
    counts = store.compare(unreadable)
    done = []
    for batch in store.pending(size):
        done += batch
        store.put(outcome(file, broken, passing) for file in batch)
    assert len(done) == counts[0]
    return [file.path for file in done], counts[1]


def outcome(file, broken=(), passing=()):
    if file.path in broken or file.path in passing:
        return Outcome(file, reason="is broken", passing=file.path in passing)
    return Outcome(file, np.full(WIDTH, file.size, dtype=np.float16))


def held(store):
    """Path → the first number of its vector."""
    found = {}
    for ids, data in store.vectors(0, 2):
        paths = store.paths(ids.tolist())
        found |= {paths[number]: float(row[0]) for number, row in zip(ids.tolist(), data, strict=True)}
    return found


def entries(**sizes):
    return [Entry(name.encode(), size, 1) for name, size in sizes.items()]


def test_only_what_is_new_or_changed_is_pending_and_what_is_gone_goes(place):
    store = open_store(place)
    assert bring(store, entries(a=1, b=2, c=3, d=4)) == ([b"a", b"b", b"c", b"d"], 0)
    assert bring(store, entries(a=1, b=2, c=3, d=4)) == ([], 0)
    now = [*entries(a=1, b=5, e=6), Entry(b"d", 4, 2)]
    assert bring(store, now) == ([b"b", b"d", b"e"], 1)
    assert held(store) == {b"a": 1, b"b": 5, b"d": 4, b"e": 6}
    assert len(store) == 4
    store.close()
    assert held(open_store(place)) == {b"a": 1, b"b": 5, b"d": 4, b"e": 6}


def test_the_state_tells_what_came_and_went_and_ids_are_never_given_again(place):
    store = open_store(place)
    bring(store, entries(a=1, b=2))
    first, ids = store.state(), store.ids()
    bring(store, entries(a=1, b=2))
    assert store.state() == first
    bring(store, entries(a=1))
    assert store.state().removals == 1
    bring(store, entries(a=1, b=2))
    assert store.state().last > first.last
    assert set(store.ids()) - set(ids) == {store.state().last}
    bring(store, entries(a=9, b=2))
    assert store.state().removals == 2


def test_broken_files_are_remembered_and_those_that_pass_are_not(place):
    store = open_store(place)
    now = entries(a=1, b=2, c=3)
    bring(store, now, broken=[b"b"], passing=[b"c"])
    assert [str(fault) for fault in store.faults()] == ["b is broken"]
    assert len(store) == 1
    assert bring(store, now) == ([b"c"], 0)
    # a file that was a picture and can no longer be read is not found as what it was
    bring(store, entries(a=7, b=2, c=8), broken=[b"a"], passing=[b"c"])
    assert held(store) == {}
    assert [fault.name for fault in store.faults()] == ["a", "b"]
    bring(store, entries(a=7, b=4, c=8))
    assert held(store) == {b"b": 4, b"c": 8}


def test_what_lies_below_a_folder_that_cannot_be_read_stays(place):
    store = open_store(place)
    paths = [b"s", b"s/a", b"s/t/b", b"s0", b"s.a", b"t"]
    bring(store, [Entry(path, 1, 1) for path in paths])
    assert bring(store, entries(t=1), [Unreadable(b"s", "Input/output error")]) == ([], 2)
    assert set(held(store)) == {b"s", b"s/a", b"s/t/b", b"t"}


def test_a_batch_is_kept_whole_or_not_at_all(place):
    store = open_store(place)
    list(store.note(entries(a=1, b=2, c=3, d=4)))
    store.compare([])
    batches = store.pending(2)
    store.put(map(outcome, next(batches)))

    def stopped(files):
        yield outcome(files[0])
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.put(stopped(next(batches)))
    assert held(store) == {b"a": 1, b"b": 2}
    assert bring(open_store(place), entries(a=1, b=2, c=3, d=4)) == ([b"c", b"d"], 0)


def test_another_folder_model_or_program_is_told(place):
    open_store(place).close()
    with pytest.raises(
        InputError, match="is the index of /pictures: choose another place for that of /other"
    ):
        open_store(place, folder="/other")
    with pytest.raises(InputError, match=r"another model \(label of m\): choose another place"):
        open_store(place, model="n")
    with pytest.raises(InputError, match="another model"):
        open_store(place, width=8)
    with sqlite3.connect(place / DATABASE) as connection:
        connection.execute("UPDATE about SET value = 99 WHERE name = 'format'")
    with pytest.raises(InputError, match="another version of this program: remove it"):
        open_store(place)


def test_a_place_with_other_files_or_a_file_in_the_way(place, tmp_path):
    place.mkdir()
    (place / "letter.txt").write_text("dear")
    with pytest.raises(InputError, match="holds other files: choose a new or an empty folder"):
        open_store(place)
    with pytest.raises(InputError, match="in the way"):
        open_store(place / "letter.txt")
    assert [file.name for file in place.iterdir()] == ["letter.txt"]


def test_a_database_of_something_else(place):
    place.mkdir()
    with sqlite3.connect(place / DATABASE) as connection:
        connection.execute("CREATE TABLE songs (name TEXT)")
    with pytest.raises(InputError, match=r"is damaged .*remove that folder"):
        open_store(place)


def test_damage_anywhere_is_one_line(place):
    store = open_store(place)
    bring(store, [Entry(b"%03d" % number, number, 1) for number in range(400)])
    store.close()
    whole = (place / DATABASE).read_bytes()
    assert len(whole) > 4 * 16384
    for start, length in ((0, 100), (0, len(whole)), (16384, len(whole)), (len(whole) // 2, 16384)):
        junk = np.random.default_rng(0).bytes(length)
        (place / DATABASE).write_bytes(whole[:start] + junk[: len(whole) - start] + whole[start + length :])
        with pytest.raises(InputError, match=r"is damaged .*remove that folder"):
            read_all(place)
    (place / DATABASE).write_bytes(whole[: len(whole) // 2])
    with pytest.raises(InputError, match="is damaged"):
        read_all(place)


def read_all(place):
    store = open_store(place)
    try:
        held(store)
        bring(store, [Entry(b"%03d" % number, number + 1, 1) for number in range(400)])
    finally:
        store.close()


def test_a_full_disk_loses_nothing(place):
    store = open_store(place)
    bring(store, entries(a=1, b=2))
    query = store._connection.execute
    query(f"PRAGMA max_page_count = {query('PRAGMA page_count').fetchone()[0]}")
    many = [*entries(a=1, b=2), *(Entry(b"%04d" % number, 1, 1) for number in range(4000))]
    with pytest.raises(
        InputError, match=r"no space left on device .*free some space or choose another place"
    ):
        bring(store, many, size=4000)
    assert held(store) == {b"a": 1, b"b": 2}
    store.close()
    store = open_store(place)
    bring(store, many)
    assert len(store) == 4002


def test_a_place_that_cannot_be_written():
    with pytest.raises(InputError, match="cannot write /proc"):
        open_store(Path("/proc/index"))


def test_a_reader_sees_one_moment_while_another_writes(place):
    reader, writer = open_store(place), open_store(place)
    bring(writer, entries(a=1))
    with reader.snapshot():
        before = reader.state()
        bring(writer, entries(b=2))
        assert reader.state() == before
        assert held(reader) == {b"a": 1}
    assert held(reader) == {b"b": 2}

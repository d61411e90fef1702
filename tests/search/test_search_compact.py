from contextlib import contextmanager

import numpy as np
import pytest

from diffclip.search import compact
from diffclip.search.compact import CompactVectors
from diffclip.search.lock import updating, writing_compact
from diffclip.search.scan import Entry
from diffclip.search.store import COMPACT, Outcome, Store

WIDTH = 32


def unit(count, seed=0, width=WIDTH):
    vectors = np.random.default_rng(seed).standard_normal((count, width), dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def fill(store, vectors):
    """Make the store hold `vectors`, path → [D], whatever it held; those that stay are not touched."""
    entries = [Entry(path, hash(row.tobytes()) % 2**31, 1) for path, row in vectors.items()]
    list(store.note(entries))
    store.compare([])
    for batch in store.pending(50):
        store.put(Outcome(file, vectors[file.path].astype(np.float16)) for file in batch)


def named(vectors, start=0):
    return {b"%05d" % number: row for number, row in enumerate(vectors, start)}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "index", tmp_path, "m", "label", WIDTH)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(compact, "PART", 64)
    monkeypatch.setattr(compact, "_CHUNK", 50)


def expected(store, vectors, query, top):
    """Exact search in float32."""
    paths = list(vectors)
    scores = np.stack([vectors[path] for path in paths]) @ query
    best = np.argsort(-scores)[:top]
    return {paths[number]: float(scores[number]) for number in best}


def found(store, shelf, query, top):
    hits = shelf.search(query, top)
    assert [score for _, score in hits] == sorted((score for _, score in hits), reverse=True)
    paths = store.paths([number for number, _ in hits])
    return {paths[number]: score for number, score in hits}


def check(store, shelf, vectors, top=10):
    assert len(shelf) == len(vectors)
    for query in unit(5, seed=9):
        hits = found(store, shelf, query, top)
        wanted = expected(store, vectors, query, top)
        assert len(set(hits) & set(wanted)) >= min(top, len(vectors)) - 1
        scores = np.array([vectors[path] @ query for path in hits])
        np.testing.assert_allclose(list(hits.values()), scores, atol=1e-3)


def test_what_comes_changes_and_goes_is_found_as_by_an_exact_search(store):
    shelf = CompactVectors(WIDTH)
    shelf.refresh(store)
    assert shelf.search(unit(1)[0], 5) == []
    vectors = named(unit(300))
    fill(store, vectors)
    shelf.refresh(store)
    check(store, shelf, vectors)
    vectors = dict(list(vectors.items())[70:]) | named(unit(40, seed=2), 100) | named(unit(30, seed=3), 900)
    fill(store, vectors)
    shelf.refresh(store)
    check(store, shelf, vectors)
    check(store, shelf, vectors, top=1000)
    fresh = CompactVectors(WIDTH)
    fresh.refresh(store)
    check(store, fresh, vectors)
    only = dict(list(vectors.items())[:1])
    fill(store, only)
    shelf.refresh(store)
    check(store, shelf, only)


def test_taking_in_that_is_stopped_is_begun_anew(store, monkeypatch):
    vectors = named(unit(300))
    fill(store, vectors)
    shelf, original = CompactVectors(WIDTH), store.vectors

    def stopped(after, size):
        yield next(original(after, size))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "vectors", stopped)
        with pytest.raises(KeyboardInterrupt):
            shelf.refresh(store)
    shelf.refresh(store)
    check(store, shelf, vectors)


def test_recall_against_exact_search_in_float32(tmp_path):
    """Ten nearest of 20,000 in crowds, as a model makes them: cosines of 0.9 within, of 0 between them."""
    width = 128
    store = Store(tmp_path / "index", tmp_path, "m", "label", width)
    crowds = unit(40, width=width)
    vectors = np.repeat(crowds, 500, axis=0) + 0.3 * unit(20000, seed=1, width=width)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    fill(store, named(vectors))
    shelf = CompactVectors(width)
    shelf.refresh(store)
    overlap = []
    for query in crowds + 0.3 * unit(40, seed=2, width=width):
        query /= np.linalg.norm(query)
        hits = found(store, shelf, query, 10)
        overlap.append(len(set(hits) & set(expected(store, named(vectors), query, 10))) / 10)
    assert np.mean(overlap) > 0.98


def file_of(store):
    return store.place / COMPACT / "vectors.faiss"


def reads_no_vectors(store, monkeypatch):
    """Whether a new shelf is filled without the database's vectors."""
    shelf, chunks = CompactVectors(WIDTH), []
    original = store.vectors

    def watching(after, size):
        for chunk in original(after, size):
            chunks.append(chunk)
            yield chunk

    monkeypatch.setattr(store, "vectors", watching)
    shelf.refresh(store)
    monkeypatch.undo()
    return not chunks, shelf


def test_the_file_saves_reading_the_database(store, monkeypatch):
    vectors = named(unit(200))
    fill(store, vectors)
    CompactVectors(WIDTH).refresh(store)
    saved, shelf = reads_no_vectors(store, monkeypatch)
    assert saved
    check(store, shelf, vectors)


@pytest.mark.parametrize("damage", ["cut", "empty", "bit", "length", "junk", "missing"])
def test_a_damaged_file_is_made_anew(store, monkeypatch, damage):
    vectors = named(unit(200))
    fill(store, vectors)
    CompactVectors(WIDTH).refresh(store)
    file = file_of(store)
    whole = file.read_bytes()
    bits = bytearray(whole)
    if damage == "bit":
        bits[len(whole) // 2] ^= 1
    elif damage == "length":
        bits[0:8] = b"\xff" * 8
    content = {"cut": whole[: len(whole) // 2], "empty": b"", "junk": unit(90).tobytes()}.get(
        damage, bytes(bits)
    )
    file.write_bytes(content)
    if damage == "missing":
        file.unlink()
    saved, shelf = reads_no_vectors(store, monkeypatch)
    assert not saved
    check(store, shelf, vectors)
    assert file.read_bytes() == whole


def test_a_file_of_another_database_is_not_used(store, tmp_path, monkeypatch):
    fill(store, named(unit(100)))
    CompactVectors(WIDTH).refresh(store)
    other = Store(tmp_path / "other", tmp_path, "m", "label", WIDTH)
    vectors = named(unit(100, seed=5))
    fill(other, vectors)
    assert other.state().last == store.state().last
    file_of(other).parent.mkdir()
    file_of(other).write_bytes(file_of(store).read_bytes())
    saved, shelf = reads_no_vectors(other, monkeypatch)
    assert not saved
    check(other, shelf, vectors)


def test_few_changes_leave_the_file_and_many_rewrite_it(store):
    vectors = named(unit(200))
    fill(store, vectors)
    shelf = CompactVectors(WIDTH)
    shelf.refresh(store)
    first = file_of(store).read_bytes()
    for number in range(3):
        vectors |= named(unit(5, seed=number + 7), 500 + 5 * number)
        fill(store, vectors)
        for one in (shelf, CompactVectors(WIDTH)):
            one.refresh(store)
            check(store, one, vectors)
        assert (file_of(store).read_bytes() == first) == (number < 2)


def test_a_file_that_cannot_be_written_costs_nothing_else(store):
    vectors = named(unit(100))
    fill(store, vectors)
    (store.place / COMPACT).write_text("in the way")
    shelf = CompactVectors(WIDTH)
    shelf.refresh(store)
    check(store, shelf, vectors)


def test_one_writes_the_file_at_a_time_and_leftovers_go(store):
    fill(store, named(unit(100)))
    with writing_compact(store.place):
        CompactVectors(WIDTH).refresh(store)
        assert not file_of(store).exists()
    file_of(store).parent.mkdir()
    (file_of(store).parent / ".0123abcd.tmp").write_bytes(b"of a process that was killed")
    CompactVectors(WIDTH).refresh(store)
    assert [file.name for file in file_of(store).parent.iterdir()] == ["vectors.faiss"]


def test_writing_the_file_and_updating_do_not_wait_for_each_other(store):
    fill(store, named(unit(100)))
    with updating(store.place):
        CompactVectors(WIDTH).refresh(store)
        assert file_of(store).exists()
    with writing_compact(store.place), updating(store.place):
        pass
    Store(store.place, store.place.parent, "m", "label", WIDTH).close()


def test_a_file_written_between_is_of_no_later_moment_than_what_is_read(store, monkeypatch):
    """Else what came between would be taken in twice."""
    vectors = named(unit(60))
    fill(store, vectors)
    other = Store(store.place, store.place.parent, "m", "label", WIDTH)
    both, snapshot = vectors | named(unit(60, seed=2), 500), store.snapshot

    @contextmanager
    def later():
        with snapshot():
            store.state()
            fill(other, both)
            CompactVectors(WIDTH).refresh(other)
            yield

    shelf = CompactVectors(WIDTH)
    with monkeypatch.context() as patched:
        patched.setattr(store, "snapshot", later)
        shelf.refresh(store)
    check(store, shelf, vectors)
    shelf.refresh(store)
    check(store, shelf, both)

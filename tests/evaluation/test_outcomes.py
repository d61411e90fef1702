import json

import numpy as np
import pytest

from diffclip.errors import InputError
from diffclip.evaluation.outcomes import ItemOutcomes, key_of, outcomes_file, read_outcomes, write_outcomes
from diffclip.evaluation.protocol import drawn, with_particulars
from diffclip.evaluation.records import Record
from diffclip.evaluation.significance import paired_test


def record(**changes):
    made = Record(
        model="CLIP",
        weights="clip.pt",
        task="few-shot",
        dataset="dtd",
        split="test",
        metric="acc1",
        value=0.5,
        count=4,
        low=0.4,
        high=0.6,
        seed=0,
        protocol=with_particulars("few-shot; 5 classes", drawn(1, "in 3 s")),
    )
    return made.model_copy(update=changes)


def test_what_is_written_is_read_back_exactly(tmp_path):
    rng = np.random.default_rng(0)
    outcomes = {
        "bits": np.array([1.0, 0, 0, 1, 1, 0, 1, 0, 1]),
        "all right": np.ones(3),
        "neither 0 nor 1": np.array([0.3, 0.2, 0.3]),
        "shares": rng.integers(31, size=500) / 30,
        "one item": np.zeros(1),
        "many values": rng.random(1000),
        "very many values": rng.random(70_000),
    }
    write_outcomes(tmp_path / "a.npz", {key: ItemOutcomes(hits, None) for key, hits in outcomes.items()})
    found = read_outcomes(tmp_path / "a.npz")
    assert list(found) == list(outcomes)
    assert [key for key in outcomes if found[key].hits.tolist() != outcomes[key].tolist()] == []
    assert all(one.clusters is None and one.hits.dtype == np.float64 for one in found.values())


def test_of_items_in_clusters_the_sums_are_kept(tmp_path):
    clusters = np.array([7, 5, -2, 5, 7, 5])
    hits = {"a": np.array([1.0, 1, 0, 0, 1, 1]), "b": np.array([0.0, 0, 1, 0, 1, 0])}
    other = ItemOutcomes(np.array([0.5, 0.25]), np.array([3, 3]))
    outcomes = {key: ItemOutcomes(own, clusters) for key, own in hits.items()}
    write_outcomes(tmp_path / "a.npz", outcomes | {"other": other})
    found = read_outcomes(tmp_path / "a.npz")
    assert found["a"].clusters.tolist() == found["b"].clusters.tolist() == [-2, 5, 5, 5, 7, 7]
    assert found["a"].hits.tolist() == [0, 2 / 3, 2 / 3, 2 / 3, 1, 1]
    assert found["b"].hits.tolist() == [1, 0, 0, 0, 0.5, 0.5]
    assert found["other"].hits.tolist() == [0.375, 0.375]
    before, after = (
        paired_test(own["a"].hits, own["b"].hits, own["a"].clusters) for own in (outcomes, found)
    )
    assert (after.p, after.informative) == (before.p, before.informative)
    assert after.difference == pytest.approx(before.difference)


def test_right_and_wrong_take_a_bit_an_item(tmp_path):
    rng = np.random.default_rng(0)
    hits = {str(number): ItemOutcomes((rng.random(8000) < 0.5) * 1.0, None) for number in range(20)}
    write_outcomes(tmp_path / "a.npz", hits)
    # 1000 bytes each, and one head for all of them
    assert (tmp_path / "a.npz").stat().st_size < 20 * 1000 + 3000


def test_no_outcomes_and_no_file_are_none(tmp_path):
    write_outcomes(tmp_path / "a.npz", {})
    assert read_outcomes(tmp_path / "a.npz") == {}
    assert read_outcomes(tmp_path / "missing.npz") == {}


def test_a_damaged_file_is_named(tmp_path):
    path = tmp_path / "a.outcomes.npz"
    write_outcomes(path, {"a": ItemOutcomes(np.ones(100), None)})
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(InputError, match=r"a\.outcomes\.npz is damaged"):
        read_outcomes(path)


def test_arrays_that_end_too_early_are_damage(tmp_path):
    path = tmp_path / "a.outcomes.npz"
    write_outcomes(path, {"a": ItemOutcomes(np.arange(5.0), None)})
    with np.load(path) as data:
        arrays = dict(data)
    np.savez(path, **arrays | {"values_counts": np.array([6])})
    with pytest.raises(InputError, match="damaged"):
        read_outcomes(path)


def test_outcomes_lie_beside_their_records():
    assert outcomes_file("some/results.jsonl").as_posix() == "some/results.outcomes.npz"


def test_a_key_tells_draws_and_protocols_apart_but_not_what_a_run_found():
    key = key_of(record())
    assert json.loads(key)[-2:] == [1, "few-shot; 5 classes"]
    other = with_particulars("few-shot; 5 classes", drawn(1, "in 9 s"))
    assert key_of(record(protocol=other, value=0.1, low=None)) == key
    for change in (
        {"weights": "b"},
        {"seed": 1},
        {"metric": "acc5"},
        {"dataset": "pets"},
        {"split": "val"},
        {"protocol": with_particulars("few-shot; 5 classes", drawn(2))},
        {"protocol": with_particulars("few-shot; 6 classes", drawn(1))},
    ):
        assert key_of(record(**change)) != key

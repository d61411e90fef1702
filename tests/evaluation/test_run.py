"""Suites on real files: what is finished is found again, a failure ends one task, and nothing in the file is lost."""

import json

import pytest
from class_sets import write_class_set
from masked_sets import animals, write_masked
from subjects import run, subject

from diffclip.errors import InputError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.results_file import ResultsFile, outcome_key, read_outcomes
from diffclip.evaluation.scores import Score
from diffclip.evaluation.suite import Entry

CLIP = subject("CLIP", image_size=16)


@pytest.fixture(scope="module")
def classes(tmp_path_factory):
    """Six classes of eight images, with a train and a test split."""
    labels = [i % 6 for i in range(48)]
    folder = tmp_path_factory.mktemp("sets") / "colors"
    return str(write_class_set(folder, {"train": labels, "test": labels}, 6))


def test_a_suite_goes_on_and_other_weights_are_measured_again(classes, tmp_path):
    path, entries = tmp_path / "results.jsonl", [Entry("zero-shot", classes), Entry("few-shot", classes)]
    run(CLIP, *entries[:1], file=path)
    assert [one.reused for one in run(CLIP, *entries, file=path)] == [True, False]
    other = subject("CLIP", seed=1, image_size=16)
    assert not any(one.reused for one in run(other, *entries, file=path))
    kept = {(record.weights, record.task) for record in read_records(path)}
    assert kept >= {(one.weights, task) for one in (CLIP, other) for task in ("zero-shot", "few-shot")}


def test_a_changed_set_is_measured_again(tmp_path):
    folder = write_masked(tmp_path / "set", animals())
    entry, path = Entry("focus", str(folder)), tmp_path / "results.jsonl"
    run(CLIP, entry, file=path)
    write_masked(tmp_path / "set", animals(5))
    assert not run(CLIP, entry, file=path)[0].reused


def test_what_two_processes_add_to_one_file_stays(tmp_path):
    path = tmp_path / "new" / "results.jsonl"
    open_files = [ResultsFile(path) for _ in range(2)]
    facts = {"task": "x", "dataset": "y", "split": "z", "protocol": "made up"}
    scores = [Score("acc1", 0.5, 10, 0.4, 0.6, 0.1, facts=facts)]
    for number in range(4):
        open_files[number % 2].add(scores, "stamp", model="CLIP", weights=str(number), seed=None)
        open_files[number % 2].write()
    assert [one.weights for one in read_records(path)] == ["0", "1", "2", "3"]


def test_outcomes_lie_beside_the_records(classes, tmp_path):
    path = tmp_path / "results.jsonl"
    run(CLIP, Entry("zero-shot", classes), Entry("few-shot", classes), file=path)
    kept = read_outcomes(path)
    for record in read_records(path):
        one = kept.get(outcome_key(record))
        assert (one is None) == (record.metric == "mean_per_class_recall" or record.task == "six-tasks")
        if one is not None:
            assert one.hits.mean() == pytest.approx(record.value)
    path.with_name("results.outcomes.npz").write_bytes(b"cut short")
    assert read_outcomes(path) == {}


def test_a_file_of_something_else_is_refused(classes, tmp_path):
    path = tmp_path / "results.jsonl"
    path.write_text(json.dumps({"step": 1}) + "\n")
    with pytest.raises(InputError, match="line 1 is not a record"):
        ResultsFile(path)
    assert json.loads(path.read_text()) == {"step": 1}


def test_an_entry_has_its_own_interpolation_and_templates(classes):
    entries = [Entry("few-shot", classes), Entry("few-shot", classes, interpolation="bicubic")]
    own, bicubic, worded = run(CLIP, *entries, Entry("zero-shot", classes, templates=("{c}", "a {c}")))
    assert worded.records[0].templates == 2
    assert "bilinear" in own.records[0].protocol
    assert "bicubic" in bicubic.records[0].protocol

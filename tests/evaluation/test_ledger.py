import numpy as np
import pytest

from diffclip.errors import InputError
from diffclip.evaluation.ledger import Ledger
from diffclip.evaluation.outcomes import key_of, outcomes_file, read_outcomes
from diffclip.evaluation.records import read_records
from diffclip.evaluation.scores import Result, Score


def result(dataset, value, task="zero-shot"):
    hits = np.array([1.0] * round(10 * value) + [0.0] * (10 - round(10 * value)))
    return Result(
        task,
        dataset,
        "test",
        f"{task}; 2 classes",
        [Score("acc1", value, 10, value - 0.1, value + 0.1, 0.5, hits)],
    )


def everything(record):
    return True


def test_records_and_outcomes_are_written_together(tmp_path):
    path = tmp_path / "r.jsonl"
    ledger = Ledger(path)
    ledger.add(result("a", 0.4), "CLIP", "runs/clip", 3)
    ledger.write()
    (record,) = read_records(path)
    assert (record.model, record.weights, record.seed, record.value) == ("CLIP", "runs/clip", 3, 0.4)
    assert read_outcomes(outcomes_file(path))[key_of(record)].hits.sum() == 4


def test_several_sets_get_their_averages_and_one_does_not(tmp_path):
    ledger = Ledger(None)
    ledger.add(result("a", 0.4), "CLIP", "w", None)
    assert [record.task for record in ledger.records] == ["zero-shot"]
    ledger.add(result("b", 0.8), "CLIP", "w", None)
    average = ledger.records[-1]
    assert (average.task, average.dataset) == ("six-tasks", "zero-shot")
    assert average.value == pytest.approx(0.6)


def test_results_that_would_be_lost_are_refused(tmp_path):
    path = tmp_path / "r.jsonl"
    ledger = Ledger(path)
    ledger.add(result("a", 0.4), "CLIP", "runs/clip", None)
    ledger.write()
    with pytest.raises(InputError, match=r"would be lost \(CLIP from runs/clip, zero-shot on a\)"):
        Ledger(path, expected=lambda record: record.weights == "runs/other")
    assert Ledger(path, expected=everything).records == []


def test_what_is_kept_stays_until_it_is_measured_again(tmp_path):
    path = tmp_path / "r.jsonl"
    first = Ledger(path)
    for weights, value in (("step_1", 0.2), ("step_2", 0.5)):
        first.add(result("a", value), "CLIP", weights, None)
    first.write()
    ledger = Ledger(path, expected=lambda record: False, keep=everything)
    ledger.add(result("a", 0.9), "CLIP", "step_2", None)
    ledger.write()
    assert [(record.weights, record.value) for record in read_records(path)] == [
        ("step_1", 0.2),
        ("step_2", 0.9),
    ]
    assert len(read_outcomes(outcomes_file(path))) == 2


def test_a_pipe_gets_records_and_nothing_lies_beside_it(tmp_path):
    import os
    import threading

    pipe = tmp_path / "pipe.jsonl"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    ledger = Ledger(pipe)
    ledger.add(result("a", 0.4), "CLIP", "w", None)
    ledger.write()
    reader.join()
    assert '"value": 0.4' in read[0]
    assert not outcomes_file(pipe).exists()


def test_two_models_of_random_weights_are_two(tmp_path):
    ledger = Ledger(None)
    for model, value in (("CLIP", 0.4), ("DiffCLIP", 0.6)):
        ledger.add(result("a", value), model, "random, seed 0", None)
    assert [(record.model, record.value) for record in ledger.records] == [("CLIP", 0.4), ("DiffCLIP", 0.6)]


def test_another_task_of_the_same_weights_stays():
    ledger = Ledger(None)
    ledger.add(result("a", 0.4), "CLIP", "w", None)
    ledger.add(result("b", 0.6), "CLIP", "w", None)
    ledger.add(result("a", 0.5), "CLIP", "w", None)
    assert [(record.dataset, record.value) for record in ledger.records[:2]] == [("b", 0.6), ("a", 0.5)]

import json
from functools import partial
from typing import get_args

import in_process
import pytest

from diffclip.cli.evaluate import CorruptionName, SuiteName, TaskName
from diffclip.errors import InputError
from diffclip.evaluation.corruptions import CORRUPTIONS
from diffclip.evaluation.records import read_records
from diffclip.evaluation.run import TASKS
from diffclip.evaluation.suite import SUITES

call = partial(in_process.call, "evaluate")


def test_zero_shot_table_and_records(model_folder, class_set, tmp_path):
    output = tmp_path / "out" / "results.jsonl"
    table, errors = call(model_folder, "--data", class_set, "--task", "zero-shot", "--output", output)
    records = read_records(output)
    assert [record.metric for record in records] == ["acc1", "mean_per_class_recall"]
    for record in records:
        assert (record.task, record.dataset, record.split) == ("zero-shot", "colours", "test")
        assert (record.count, record.classes, record.templates, record.seed) == (12, 3, 2, None)
        assert record.weights == str(model_folder)
        assert record.model.startswith("DiffCLIP-v16x1x2")
        assert record.chance == pytest.approx(1 / 3)
        assert 0 <= record.low <= record.value <= record.high <= 1
        assert "shorter edge 16 px bilinear, center crop 16 px, imagenet statistics" in record.protocol
    assert "zero-shot top-1, colours" in table
    assert "33.3" in table
    assert "acc1" not in table
    (line,) = errors.splitlines()
    assert line.startswith("diffclip: skipped 1 samples, shards or masks: ")
    assert "s0000012" in line


def test_retrieval_picks_its_task_and_prints_json(model_folder, caption_set):
    lines, _ = call(model_folder, "--data", caption_set, "--json", "--batch-size", 4)
    records = [json.loads(line) for line in lines.splitlines()]
    assert [record["metric"] for record in records] == [
        *(f"{direction}_retrieval_recall@{k}" for direction in ("image", "text") for k in (1, 5, 10)),
        "mean_recall",
    ]
    assert [record["count"] for record in records] == [21, 21, 21, 11, 11, 11, 11]
    again, _ = call(model_folder, "--data", caption_set, "--json", "--workers", 1)
    for one, other in zip(records, map(json.loads, again.splitlines()), strict=True):
        assert one | {"seconds": 0} == other | {"seconds": 0}


def test_a_folder_of_runs_is_its_runs(save_model, class_set, tmp_path):
    for seed in (0, 1):
        run = tmp_path / "runs" / f"DiffCLIP-s{seed}"
        save_model(run / "checkpoints" / "best", seed=seed)
        (run / "recipe.yaml").write_text(
            f"seed: {seed}\ninit: matched\ndata: {{train: '../sets/flickr8k/train/{{0..3}}.tar'}}\n"
        )
    lines, _ = call(tmp_path / "runs", "--data", class_set, "--json")
    records = [json.loads(line) for line in lines.splitlines()]
    assert {record["model"] for record in records} == {"DiffCLIP"}
    assert {(record["seed"], record["init"], record["data"]) for record in records} == {
        (0, "matched", "flickr8k"),
        (1, "matched", "flickr8k"),
    }
    table, _ = call(tmp_path / "runs", "--data", class_set)
    assert "mean over 2 seeds, with the 95 % interval" in " ".join(table.split())


def test_no_model_is_left_out_of_a_narrow_table(save_model, model_folder, class_set, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    other = save_model(tmp_path / "a model of another name", seed=1)
    table, _ = call(model_folder, other, "--data", class_set)
    assert max(map(len, table.splitlines())) <= 60
    assert table.count("[") >= 4
    assert "One run each: another seed or processor can turn this around." in " ".join(table.split())
    assert not {"better", "worse", "p <", "p ="} & set(table.split())


def test_two_models_are_compared_without_a_test(save_model, model_folder, caption_set, tmp_path, monkeypatch):
    monkeypatch.setattr("scipy.stats.permutation_test", lambda *_, **__: pytest.fail("p was computed"))
    table, _ = call(model_folder, save_model(tmp_path / "other", seed=1), "--data", caption_set)
    assert "difference" in table


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"--task": "retrieval"}, "colours is a set for classification.*--task zero-shot"),
        ({"--split": "val"}, "no split 'val'"),
        ({"--device": "cuda:99"}, "device 'cuda:99' is not available"),
        ({"--corrupt": "noise"}, "--corrupt noise has no severity: write, for example, noise:3"),
        ({"--corrupt": "fog:3"}, "unknown corruption 'fog'"),
        ({"--corrupt": "noise:6"}, "severity 6 is out of range: give 1 to 5"),
        ({"--prompt": "a {c}"}, "--prompt .a {c}. is for focus and faithfulness: add --task focus"),
        ({"--task": "few-shot", "--corrupt": "noise:3"}, "colours has no train split, which few-shot learns"),
        ({"model": "gone/model.pt"}, r"gone/model\.pt does not exist"),
    ],
)
def test_bad_input_is_one_line_and_writes_nothing(model_folder, class_set, tmp_path, changes, words):
    output = tmp_path / "results.jsonl"
    model = changes.pop("model", model_folder)
    arguments = [part for pair in changes.items() for part in pair]
    with pytest.raises(InputError, match=words) as caught:
        call(model, "--data", class_set, "--output", output, *arguments)
    assert "\n" not in str(caught.value)
    assert not output.exists()


def test_a_bad_second_model_is_found_before_the_first_runs(model_folder, class_set, monkeypatch):
    import diffclip.evaluation.run

    monkeypatch.setattr(diffclip.evaluation.run, "run_task", lambda *_: pytest.fail("a model was run"))
    with pytest.raises(InputError, match="unknown model 'nothing'"):
        call(model_folder, "nothing", "--data", class_set)


def test_an_output_that_cannot_be_written_is_found_first(model_folder, class_set, tmp_path, monkeypatch):
    monkeypatch.setattr("diffclip.model_source.load_for_use", lambda *_: pytest.fail("a model was loaded"))
    with pytest.raises(InputError, match=f"cannot write {tmp_path}: .* in the way"):
        call(model_folder, "--data", class_set, "--output", tmp_path)
    with pytest.raises(InputError, match="/dev/null is not a regular file"):
        call(model_folder, "--data", class_set, "--output", "/dev/null")


def test_no_model_at_all():
    with pytest.raises(InputError, match="there is no model to measure: name a run folder"):
        call("--suite", "scenes")


def test_suites_tasks_and_corruptions_are_offered_by_name():
    assert get_args(SuiteName) == tuple(SUITES)
    assert set(get_args(TaskName)) == set(TASKS)
    assert get_args(CorruptionName) == CORRUPTIONS

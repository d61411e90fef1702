import json
import re
import shutil
import signal
import time
from multiprocessing import get_context

import pytest
from class_sets import write_class_set
from masked_sets import animals, write_masked
from typer.testing import CliRunner

from diffclip.cli.main import app
from diffclip.errors import DiffCLIPError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.results_file import outcome_key, read_outcomes


def call(*arguments):
    """stdout and stderr in this process, and the error that ended it."""
    result = CliRunner().invoke(app, ["evaluate", *map(str, arguments)])
    if result.exception and not isinstance(result.exception, DiffCLIPError):
        raise result.exception
    return result.stdout, result.stderr, str(result.exception or "")


@pytest.fixture(autouse=True)
def quick_probes(monkeypatch):
    monkeypatch.setattr("diffclip.evaluation.linear_probe.MAX_ITERATIONS", 10)
    monkeypatch.setattr("diffclip.evaluation.few_shot.EPISODES", 50)


@pytest.fixture
def root(tmp_path):
    """CIFAR-10 and Flickr8k of made images where `--suite quick` looks for them; Caltech-101 is missing."""
    folder = tmp_path / "sets"
    folder.mkdir()
    labels = list(range(10))
    write_class_set(folder / "cifar10", {"train": labels * 6, "test": labels * 2}, 10)
    write_masked(folder / "flickr8k", animals(4), {"dataset_type.txt": "retrieval"}, split="val")
    return folder


def test_a_suite_of_two_models_over_draws(model_folder, save_model, root, tmp_path):
    other = save_model(tmp_path / "other", seed=1)
    output = tmp_path / "quick.jsonl"
    options = ["--suite", "quick", "--data-root", root, "--skip-missing", "--seeds", 2, "--output", output]
    table, told, error = call(model_folder, other, *options)
    assert error == ""
    assert "missing caltech101, 137 MB to download: diffclip data download caltech101" in told
    records = read_records(output)
    measured = [record for record in records if record.task not in ("six-tasks", "out-of-domain")]
    names = {(record.task, record.dataset, record.split, record.corruption) for record in measured}
    assert names == {
        ("retrieval", "flickr8k", "val", None),
        *((task, "cifar10", "test", None) for task in ("zero-shot", "few-shot", "linear-probe")),
        *(("zero-shot", "cifar10", "test", name) for name in ("noise", "blur", "jpeg", "contrast")),
    }
    few = [record for record in measured if record.task == "few-shot"]
    assert [record.draw for record in few] == [0, 1, 0, 1]
    panels = {"linear probing", "few-shot", "image retrieval", "text retrieval", "zero-shot", "out of domain"}
    assert {record.dataset for record in records if record.task == "six-tasks"} == panels
    kept = read_outcomes(output)
    assert {outcome_key(record) for record in measured if record.metric == "acc1"} <= set(kept)
    assert "Zero-shot" in table
    assert f"Tables and figures: diffclip report {output}" in table


def test_a_killed_suite_goes_on_and_measures_nothing_twice(model_folder, root, tmp_path):
    output = tmp_path / "quick.jsonl"
    arguments = [model_folder, "--suite", "quick", "--data-root", root, "--skip-missing", "--output", output]
    process = get_context("fork").Process(target=call, args=arguments)
    process.start()
    stamps = tmp_path / "quick.stamps.json"
    while process.exitcode is None and not (stamps.is_file() and len(json.loads(stamps.read_text())) > 2):
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    _, errors, failure = call(*arguments)
    assert not failure
    assert errors.count("kept from before") >= 3
    alone = tmp_path / "alone.jsonl"
    call(*arguments[:-1], alone)

    def timeless(file):
        return [record.model_copy(update={"seconds": None}) for record in read_records(file)]

    assert timeless(output) == timeless(alone)


def test_missing_sets_are_told_before_anything_starts(model_folder, root, tmp_path):
    output = tmp_path / "quick.jsonl"
    _, told, error = call(model_folder, "--suite", "quick", "--data-root", root, "--output", output)
    (line,) = told.splitlines()
    assert line.startswith("diffclip: missing caltech101, 137 MB to download: ")
    assert error == (
        f"suite quick needs --data-root {root} with caltech101: run the commands printed above, "
        "or add --skip-missing to go on without"
    )
    assert list(tmp_path.glob("quick*")) == []
    _, told, error = call(model_folder, "--suite", "attention", "--data-root", root, "--output", output)
    assert "with coco_mini, sugarcrepe, oxford_pets3: run the commands printed above" in error
    own = "a folder of your own in clip_benchmark's layout"
    wanted = [f"diffclip: missing {name}, {own}" for name in ("coco_mini", "oxford_pets3")]
    assert set(wanted) < set(told.splitlines())
    shutil.rmtree(root / "cifar10" / "train")
    _, told, error = call(model_folder, "--suite", "quick", "--data-root", root, "--output", output)
    assert {line.split()[2] for line in told.splitlines()} == {"cifar10,", "caltech101,"}
    assert "with caltech101, cifar10: run" in error
    shutil.rmtree(root / "flickr8k")
    options = ["--suite", "quick", "--data-root", root, "--skip-missing", "--output", output]
    _, told, error = call(model_folder, *options)
    assert not error
    assert "missing cifar10, its split train, which linear-probe and few-shot learn from" in told
    assert ("zero-shot", "cifar10") in {(record.task, record.dataset) for record in read_records(output)}


def test_one_broken_set_does_not_lose_the_others(model_folder, root, tmp_path):
    (root / "cifar10" / "classnames.txt").unlink()
    output = tmp_path / "quick.jsonl"
    table, told, error = call(
        model_folder, "--suite", "quick", "--data-root", root, "--skip-missing", "--output", output
    )
    assert {record.dataset for record in read_records(output) if record.task == "retrieval"} == {"flickr8k"}
    lines = [line for line in told.splitlines() if "FAILED" in line]
    assert len(lines) == 7
    assert "zero-shot on cifar10 FAILED: " in lines[0]
    assert "classnames.txt" in lines[0]
    assert error == f"7 of 8 tasks failed, see above; the other results are in {output}"
    assert "text→image R@5" in table


def test_a_broken_model_does_not_lose_the_others(model_folder, save_model, root, tmp_path):
    broken = save_model(tmp_path / "broken", seed=1)
    (broken / "model.safetensors").write_bytes(b"nothing")
    other = save_model(tmp_path / "other", seed=2)
    output = tmp_path / "r.jsonl"
    _, told, error = call(model_folder, broken, other, "--data", root / "cifar10", "--output", output)
    assert f"{broken}: FAILED: " in told
    assert "model.safetensors" in error
    assert {record.weights for record in read_records(output)} == {str(model_folder), str(other)}


def test_json_of_a_suite_whose_sets_come_from_the_root_before_folders_here(
    model_folder, root, tmp_path, monkeypatch
):
    write_class_set(tmp_path / "cifar10", {"train": [0, 1] * 6, "test": [0, 1, 1]}, 2)
    monkeypatch.chdir(tmp_path)
    out, _, error = call(model_folder, "--suite", "quick", "--data-root", root, "--skip-missing", "--json")
    assert error == ""
    lines = [json.loads(line) for line in out.splitlines()]
    tasks = {line["task"] for line in lines}
    assert {"retrieval", "zero-shot", "few-shot", "linear-probe", "six-tasks"} <= tasks
    assert {line["count"] for line in lines if line["metric"] == "acc5"} == {20}
    assert (tmp_path / "quick.jsonl").read_text() == out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give --data with a folder or the name of a set, or --suite"),
        (["--suite", "scenes", "--split", "val"], "--suite scenes has its own tasks, splits"),
        (["--data", "scenes", "--skip-missing"], "--skip-missing is for suites"),
        (["--data", "cifar10"], "cifar10 .* needs --data-root FOLDER"),
    ],
)
def test_bad_input_is_one_line(model_folder, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    _, told, error = call(model_folder, *arguments)
    assert told == ""
    assert re.search(words, error)
    assert "\n" not in error
    assert list(tmp_path.glob("*.jsonl")) == []

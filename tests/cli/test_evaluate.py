import json
import resource
import shutil
import signal
import time
from functools import partial
from multiprocessing import get_context

import in_process
import pytest
from masked_sets import animals, write_class_set, write_masked
from typer.testing import CliRunner

from diffclip import names
from diffclip.cli.main import app
from diffclip.errors import DiffCLIPError
from diffclip.evaluation.records import read_records
from diffclip.evaluation.run import TASKS

call = partial(in_process.call, "evaluate")


def test_zero_shot_prints_a_table_and_writes_records(model_folder, class_set, tmp_path):
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
    templates = (class_set / "zeroshot_classification_templates.txt").read_text()
    shutil.rmtree(class_set)
    write_class_set(class_set, {"test": [0, 1, 1]}, 2)
    (class_set / "zeroshot_classification_templates.txt").write_text(templates)
    _, errors = call(model_folder, "--data", class_set, "--task", "zero-shot", "--output", output)
    assert "diffclip: 1 earlier results in " in errors
    assert [record.count for record in read_records(output)] == [3, 3]


def test_caption_set_selects_retrieval_and_json_prints_records(model_folder, caption_set):
    lines, _ = call(model_folder, "--data", caption_set, "--json", "--batch-size", 4)
    records = [json.loads(line) for line in lines.splitlines()]
    recalls = [f"{way}_retrieval_recall@{k}" for way in ("image", "text") for k in (1, 5, 10)]
    assert [record["metric"] for record in records] == [*recalls, "mean_recall"]
    assert [record["count"] for record in records] == [21, 21, 21, 11, 11, 11, 11]
    again, _ = call(model_folder, "--data", caption_set, "--json", "--workers", 1)
    for record, repeated in zip(records, map(json.loads, again.splitlines()), strict=True):
        assert record | {"seconds": 0} == repeated | {"seconds": 0}


def test_evaluate_measures_every_run_in_a_folder_of_runs(save_model, class_set, tmp_path):
    for seed in (0, 1):
        run = tmp_path / "runs" / f"DiffCLIP-s{seed}"
        save_model(run / "checkpoints" / "best", seed=seed)
        data = "{train: '../sets/flickr8k/train/{0..3}.tar'}"
        (run / "recipe.yaml").write_text(f"seed: {seed}\ninit: matched\ndata: {data}\n")
    lines, _ = call(tmp_path / "runs", "--data", class_set, "--json")
    records = [json.loads(line) for line in lines.splitlines()]
    assert {record["model"] for record in records} == {"DiffCLIP"}
    runs = {(record["seed"], record["init"], record["data"]) for record in records}
    assert runs == {(seed, "matched", "flickr8k") for seed in (0, 1)}
    table, _ = call(tmp_path / "runs", "--data", class_set)
    assert "mean over seeds, with the 95 % interval" in " ".join(table.split())


def test_narrow_table_shows_all_models_but_no_verdict(
    save_model, model_folder, class_set, tmp_path, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "60")
    other_model = save_model(tmp_path / "a model of another name", seed=1)
    table, _ = call(model_folder, other_model, "--data", class_set)
    assert max(map(len, table.splitlines())) <= 60
    assert table.count("[") >= 4
    assert "One training run each: another seed or processor can turn this around." in " ".join(table.split())
    assert not {"better", "worse"} & set(table.split())


def test_every_task_has_a_label():
    assert names.TASKS.keys() == TASKS.keys()


# --- suites ---


def suite_of(*arguments):
    """Return stdout, stderr and the final error of `diffclip evaluate --suite`."""
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
    """A data root for `--suite quick` with synthetic CIFAR-10 and Flickr8k; Caltech-101 is missing."""
    folder = tmp_path / "sets"
    folder.mkdir()
    labels = list(range(10))
    write_class_set(folder / "cifar10", {"train": labels * 6, "test": labels * 2}, 10)
    write_masked(folder / "flickr8k", animals(4), {"dataset_type.txt": "retrieval"}, split="val")
    return folder


def test_suite_evaluates_two_models_over_several_draws(model_folder, save_model, root, tmp_path):
    other_model = save_model(tmp_path / "other", seed=1)
    output = tmp_path / "quick.jsonl"
    options = ["--suite", "quick", "--data-root", root, "--skip-missing", "--draws", 2, "--output", output]
    table, stderr, error = suite_of(model_folder, other_model, *options)
    assert error == ""
    assert "missing caltech101, diffclip data download caltech101" in stderr
    assert "text→image R@5" in stderr  # the metric of the table, while it goes on
    records = read_records(output)
    measured = [record for record in records if record.task not in ("six-tasks", "out-of-domain")]
    names = {(record.task, record.dataset, record.split) for record in measured}
    assert names == {
        ("retrieval", "flickr8k", "val"),
        *((task, "cifar10", "test") for task in ("zero-shot", "few-shot", "linear-probe")),
    }
    few_shot = [record for record in measured if record.task == "few-shot"]
    assert [record.draw for record in few_shot] == [0, 1, 0, 1]
    panels = {"linear probing", "few-shot", "image retrieval", "text retrieval", "zero-shot"}
    assert {record.dataset for record in records if record.task == "six-tasks"} == panels
    assert "zero-shot" in table
    assert f"Tables and figures: diffclip report {output}" in table


def finished_tasks(file):
    records = read_records(file) if file.is_file() else []
    return {record.task for record in records if record.of is None}


def test_a_killed_suite_resumes_to_the_same_results_and_prints_json(
    model_folder, root, tmp_path, monkeypatch
):
    output = tmp_path / "cut.jsonl"
    arguments = [model_folder, "--suite", "quick", "--data-root", root, "--skip-missing"]
    process = get_context("fork").Process(target=suite_of, args=[*arguments, "--output", output])
    process.start()
    while (
        process.exitcode is None and len(finished_tasks(output)) < 3
    ):  # two, and one that may lack its stamp
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    _, errors, failure = suite_of(*arguments, "--output", output)
    assert not failure
    assert errors.count("kept from before") >= 2
    # a set in --data-root comes before a folder of the same name in the working directory
    write_class_set(tmp_path / "cifar10", {"train": [0, 1] * 6, "test": [0, 1, 1]}, 2)
    monkeypatch.chdir(tmp_path)
    printed, _, failure = suite_of(*arguments, "--json")
    assert not failure
    assert (tmp_path / "quick.jsonl").read_text() == printed
    lines = [json.loads(line) for line in printed.splitlines()]
    assert {line["count"] for line in lines if line["metric"] == "acc5"} == {20}

    def timeless(file):
        return [record.model_copy(update={"seconds": None}) for record in read_records(file)]

    assert timeless(output) == timeless(tmp_path / "quick.jsonl")


def test_the_first_result_that_cannot_be_written_ends_the_suite(model_folder, root, tmp_path):
    output = tmp_path / "full.jsonl"
    arguments = [model_folder, "--suite", "quick", "--data-root", root, "--skip-missing", "--output", output]
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limits[1]))  # a file ends here, as on a full disk
    try:
        _, stderr, error = suite_of(*arguments)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert str(output.with_suffix("")) in error
    assert error.endswith("earlier results are kept: run the command again when there is space")
    assert "FAILED" not in stderr
    assert not output.exists()


def test_missing_sets_are_listed_before_any_evaluation(model_folder, root, tmp_path):
    output = tmp_path / "quick.jsonl"
    _, stderr, error = suite_of(model_folder, "--suite", "quick", "--data-root", root, "--output", output)
    (line,) = stderr.splitlines()
    assert line.startswith("diffclip: missing caltech101, diffclip data download")
    assert error.startswith(f"suite quick needs --data-root {root} with caltech101: run the commands printed")
    assert error.endswith("or add --skip-missing to go on without")
    assert list(tmp_path.glob("quick*")) == []
    shutil.rmtree(root / "cifar10" / "train")
    shutil.rmtree(root / "flickr8k")
    options = ["--suite", "quick", "--data-root", root, "--skip-missing", "--output", output]
    _, stderr, error = suite_of(model_folder, *options)
    assert not error
    assert "missing cifar10, its split train, which linear-probe and few-shot learn from" in stderr
    assert ("zero-shot", "cifar10") in {(record.task, record.dataset) for record in read_records(output)}


def test_suite_continues_after_a_broken_model_and_a_broken_set(model_folder, save_model, root, tmp_path):
    broken = save_model(tmp_path / "broken", seed=1)
    (broken / "model.safetensors").write_bytes(b"nothing")
    (root / "cifar10" / "classnames.txt").unlink()
    output = tmp_path / "quick.jsonl"
    options = ["--suite", "quick", "--data-root", root, "--skip-missing", "--output", output]
    table, stderr, error = suite_of(broken, model_folder, *options)
    evaluated = {(record.weights, record.dataset) for record in read_records(output)}
    assert evaluated >= {(str(model_folder), "flickr8k")}
    assert {weights for weights, _ in evaluated} == {str(model_folder)}
    first, *lines = [line for line in stderr.splitlines() if "FAILED" in line]
    assert first.startswith(f"{broken}: FAILED: ")
    assert "model.safetensors" in first
    assert len(lines) == 3
    assert "zero-shot on cifar10 FAILED: " in lines[0]
    assert "classnames.txt" in lines[0]
    assert error == f"4 of 5 tasks failed, see above; the other results are in {output}"
    assert "text→image R@5" in table

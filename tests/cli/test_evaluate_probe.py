"""`diffclip evaluate --task linear-probe` and `--task few-shot`, mostly in a process of their own."""

import json
import subprocess
import sys

import pytest
import typer
from class_sets import write_class_set
from typer.testing import CliRunner

from diffclip.cli.evaluate import evaluate
from diffclip.errors import InputError
from diffclip.evaluation.protocol import draw_of, method_of, particulars_of
from diffclip.evaluation.records import read_records

app = typer.Typer()
app.command()(evaluate)


@pytest.fixture(scope="module")
def five(tmp_path_factory):
    """Five classes with train and test."""
    return write_class_set(
        tmp_path_factory.mktemp("sets") / "five",
        {"train": [0, 1, 2, 3, 4] * 6, "test": [4, 3, 2, 1, 0] * 3},
        5,
    )


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "diffclip.cli", "evaluate", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def records_of(*arguments: object) -> list[dict]:
    result = CliRunner().invoke(app, [str(argument) for argument in (*arguments, "--json")])
    if result.exception:
        raise result.exception
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_a_linear_probe_in_its_own_process(model_folder, five, tmp_path):
    output = tmp_path / "results.jsonl"
    done = run(model_folder, "--data", five, "--task", "linear-probe", "--output", output)
    assert (done.returncode, done.stderr) == (0, "")
    first, second = read_records(output)
    assert [first.metric, second.metric] == ["acc1", "mean_per_class_recall"]
    assert (first.task, first.dataset, first.split, first.count) == ("linear-probe", "five", "test", 15)
    assert first.value > 0.6  # colours; chance is 0.2
    assert first.protocol == second.protocol
    for words in (
        "linear-probe; 5 classes, class token before the projection; torch L-BFGS, un-squared L2 penalty",
        "cost chosen by acc1 on a stratified fifth of train; fitted again on both, 30 pictures",
        "shorter edge 16 px bilinear",
        "95 % bootstrap over pictures",
    ):
        assert words in method_of(first.protocol)
    draw, cost, fits = particulars_of(first.protocol).split("; ")
    assert draw == "draw 0"
    assert float(cost.removeprefix("cost ")) > 0
    count, seconds = fits.split(" fits in ")
    assert len(seconds.split(" s")[0].split()) == int(count)
    assert "fits in" in done.stdout


def test_few_shot_in_its_own_process(model_folder, five):
    done = run(model_folder, "--data", five, "--task", "few-shot", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    (record,) = map(json.loads, done.stdout.splitlines())
    assert (record["task"], record["metric"], record["count"]) == ("few-shot", "acc1", 5000)
    assert 0.5 < record["low"] < record["value"] < record["high"]
    assert record["protocol"].startswith(
        "few-shot; 5 classes an episode of 5, 5 train pictures and up to 6 queries"
    )
    assert record["protocol"].endswith("95 % bootstrap over test pictures | draw 0")
    assert record["seed"] is None


def test_a_validation_split_is_used(model_folder, tmp_path):
    folder = write_class_set(
        tmp_path / "pets", {"train": [0, 1] * 4, "val": [0, 1] * 2, "test": [0, 1, 1]}, 2
    )
    record = records_of(model_folder, "--data", folder, "--task", "linear-probe")[0]
    assert (
        "cost chosen by mean_per_class_recall on val; fitted again on both, 12 pictures" in record["protocol"]
    )


def test_the_seed_is_of_what_is_drawn(model_folder, five):
    few = [
        records_of(model_folder, "--data", five, "--task", "few-shot", "--seed", seed)[0]
        for seed in (0, 1, 1)
    ]
    assert few[0]["value"] != few[1]["value"]
    assert few[1] == few[2]
    assert [draw_of(record["protocol"]) for record in few] == [0, 1, 1]
    probe = records_of(model_folder, "--data", five, "--task", "linear-probe", "--seed", 3)[0]
    assert draw_of(probe["protocol"]) == 3


def test_scikit_learns_probe(model_folder, five):
    pytest.importorskip("sklearn")
    record = records_of(model_folder, "--data", five, "--task", "linear-probe", "--probe", "sklearn")[0]
    assert "scikit-learn's LogisticRegression" in record["protocol"]
    assert record["value"] > 0.6


def test_several_models_are_compared(save_model, model_folder, five, tmp_path):
    other = save_model(tmp_path / "other", seed=1)
    for task in ("linear-probe", "few-shot"):
        result = CliRunner().invoke(app, [*map(str, (model_folder, other, "--data", five, "--task", task))])
        assert result.exception is None
        assert "minus" in result.stdout
        assert result.stdout.count("fits in") == (2 if task == "linear-probe" else 0)


def test_a_broken_train_picture_is_told(model_folder, five, tmp_path):
    import shutil
    import tarfile

    folder = shutil.copytree(five, tmp_path / "five")
    with tarfile.open(folder / "train" / "0.tar", "a") as tar:
        for source, name in (("nshards.txt", "s0000099.png"), ("nshards.txt", "s0000099.cls")):
            tar.add(folder / "train" / source, name)
    result = CliRunner().invoke(app, [str(model_folder), "--data", str(folder), "--task", "few-shot"])
    assert result.exception is None
    assert "skipped 1 broken samples" in result.stderr
    assert "s0000099" in result.stderr


@pytest.mark.parametrize(
    ("splits", "classes", "arguments", "words"),
    [
        (
            {"test": [0, 1]},
            2,
            ["linear-probe"],
            "mine has no train split, which linear-probe learns from: put its",
        ),
        ({"test": [0, 1]}, 2, ["few-shot"], "mine has no train split, which few-shot learns from"),
        (
            {"train": [0, 1], "test": [0, 1]},
            2,
            ["few-shot"],
            "few-shot draws 5 classes an episode, the set has 2",
        ),
        ({"train": [0, 0], "test": [0, 1]}, 1, ["linear-probe"], "has a single class, 'colour 0'"),
        (
            {"train": [0, 0], "test": [0, 1]},
            2,
            ["linear-probe"],
            "class 'colour 1' does not have a picture to learn",
        ),
        ({"train": [0], "test": [0, 1]}, 2, ["linear-probe"], "no class has two pictures"),
        ({"train": [0, 5], "test": [0, 1]}, 2, ["linear-probe"], "label 5 of .* is outside the 2 classes"),
        (
            {"train": [0, 1], "test": [0, 1]},
            2,
            ["few-shot", "--split", "train"],
            "give another one to test on",
        ),
        ({"train": [0, 1], "test": [0, 1]}, 2, ["few-shot", "--probe", "torch"], "add --task linear-probe"),
        ({"train": [0, 1], "test": [0, 1]}, 2, ["linear-probe", "--probe", "x"], "unknown probe 'x'"),
    ],
)
def test_bad_input_is_one_line(model_folder, tmp_path, splits, classes, arguments, words):
    folder = write_class_set(tmp_path / "mine", splits, classes)
    with pytest.raises(InputError, match=words) as caught:
        records_of(model_folder, "--data", folder, "--task", *arguments)
    assert "\n" not in str(caught.value)


def test_a_line_and_a_code_for_the_shell(model_folder, class_set):
    done = run(model_folder, "--data", class_set, "--task", "few-shot")
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith("diffclip: colours has no train split, which few-shot learns from")


def test_help_names_the_tasks():
    text = " ".join(CliRunner().invoke(app, ["--help"]).stdout.split())
    assert "--task linear-probe" in text
    assert "few-shot" in text

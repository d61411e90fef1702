"""`diffclip evaluate` on minimal pairs, on corrupted pictures, and with p for several models."""

import json

import pytest
import typer
from class_sets import write_class_set
from typer.testing import CliRunner

from diffclip.cli.evaluate import evaluate
from diffclip.errors import InputError
from diffclip.scenes import write_scenes

app = typer.Typer()
app.command()(evaluate)


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """A folder of minimal pairs, two a pattern."""
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, train=2, val=2, test=2, size=32, seed=0)
    return folder / "mmvp"


def records_of(*arguments: object) -> list[dict]:
    result = CliRunner().invoke(app, [str(argument) for argument in (*arguments, "--json")])
    if result.exception:
        raise result.exception
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_pairs_find_their_task_and_are_counted_by_pattern(model_folder, pairs):
    records = records_of(model_folder, "--data", pairs)
    assert {record["task"] for record in records} == {"mmvp"}
    values = {record["metric"]: record for record in records}
    by_pattern = [record for name, record in values.items() if name.startswith("pair_accuracy/")]
    assert len(by_pattern) == 9
    mean = sum(record["value"] for record in by_pattern) / 9
    assert values["mean_per_pattern_accuracy"]["value"] == pytest.approx(mean)
    assert values["pair_accuracy"]["count"] == sum(record["count"] for record in by_pattern)


def test_the_table_has_counts_and_a_corrected_p(model_folder, save_model, pairs, tmp_path):
    other = save_model(tmp_path / "other", seed=7)
    shown = CliRunner().invoke(app, [str(model_folder), str(other), "--data", str(pairs)])
    assert shown.exit_code == 0
    assert " of 18" in shown.stdout
    assert "corrected for the number of tests (Holm)" in " ".join(shown.stdout.split())


def test_corruption_is_in_the_protocol_and_refused_where_models_learn(model_folder, class_set, tmp_path):
    (clean, *_), (noisy, *_) = (
        records_of(model_folder, "--data", class_set, *extra) for extra in ((), ("--corrupt", "noise:5"))
    )
    assert "noise" in noisy["protocol"]
    assert "noise" not in clean["protocol"]
    for corrupt, words in (("noise", "noise:3"), ("fog:3", "fog"), ("noise:9", "severity")):
        with pytest.raises(InputError, match=words):
            records_of(model_folder, "--data", class_set, "--corrupt", corrupt)
    learnt = write_class_set(tmp_path / "set", {"train": [0, 1, 2, 3, 4] * 6, "test": [0, 1, 2, 3, 4]}, 5)
    with pytest.raises(InputError, match="learns from clean"):
        records_of(model_folder, "--data", learnt, "--corrupt", "noise:2", "--task", "few-shot")

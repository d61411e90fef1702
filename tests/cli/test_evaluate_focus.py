import json
import re

import numpy as np
import pytest
import typer
from masked_sets import animals, box_mask, noise, png, write_masked
from typer.testing import CliRunner

import diffclip
from diffclip.cli.evaluate import evaluate
from diffclip.cli.evaluate_table import show_results
from diffclip.errors import InputError
from diffclip.evaluation.outcomes import key_of, outcomes_file, read_outcomes
from diffclip.evaluation.records import read_records
from diffclip.evaluation.scores import Result, Score

app = typer.Typer()
app.command()(evaluate)


def call(*arguments: object) -> tuple[str, str]:
    """stdout and stderr of `diffclip evaluate`; what it raises is raised again."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if result.exception:
        raise result.exception
    return result.stdout, result.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_masked(tmp_path_factory.mktemp("sets") / "animals", animals())


@pytest.fixture(scope="module")
def plain_model(tmp_path_factory):
    config = diffclip.CLIPConfig(
        embed_dim=16,
        vision=diffclip.VisionConfig(image_size=16, patch_size=8, width=16, layers=1, heads=2),
        text=diffclip.TextConfig(context_length=12, width=16, layers=1, heads=2),
    )
    folder = tmp_path_factory.mktemp("models") / "plain"
    diffclip.save_weights(diffclip.CLIP(config, seed=0), folder)
    return folder


def test_models_of_both_kinds_are_one_table(plain_model, model_folder, folder, tmp_path):
    output = tmp_path / "focus.jsonl"
    table, errors = call(plain_model, model_folder, "--task", "focus", "--data", folder, "--output", output)
    assert errors == ""
    assert "/layer" not in table
    for metric in ("relevance_auroc", "rollout_ap", "attention_entropy", "A1_entropy", "A1_A2_correlation"):
        assert len(re.findall(rf"^ *{metric} ", table, re.MULTILINE)) == 1
    # a row for each model where both have it, one where only the differential one has
    rows = table.splitlines()
    start = next(i for i, line in enumerate(rows) if "A1_entropy" in line)
    assert "DiffCLIP" in rows[start]
    told = " ".join(table.split())
    assert "All but counts, inside_over_area, effective_patches, A1_A2_correlation in %" in told
    assert "neither direction is a merit" in told
    effective = next(line for line in rows if "relevance_effective_patches" in line)
    assert re.search(r" [1-4]\.\d\d +[1-4]\.\d\d to [1-4]\.\d\d +4\.00 ", effective)
    records = read_records(output)
    outcomes = read_outcomes(outcomes_file(output))
    heads = [record for record in records if "head" in record.metric]
    assert heads
    assert {key_of(record) for record in records if "head" not in record.metric} == set(outcomes)
    assert all(record.low <= record.value <= record.high for record in records)


def test_the_first_model_may_have_more_than_the_second(plain_model, model_folder, folder):
    table, _ = call(model_folder, plain_model, "--task", "focus", "--data", folder)
    assert table.count("A1_entropy") == 1


def test_models_whose_crops_show_other_objects_are_not_compared(capsys):
    def result(clusters):
        hits = np.arange(len(clusters)) / 10
        score = Score("relevance_auroc", 0.5, len(hits), 0.4, 0.6, 0.5, hits, np.array(clusters))
        return Result("focus", "animals", "test", "focus; 2×2 patches", [score])

    show_results([("CLIP", "a", result([0, 1, 2])), ("DiffCLIP", "b", result([0, 2]))])
    table = capsys.readouterr().out
    assert len(re.findall(r"50\.0 +40\.0 to 60\.0", table)) == 2
    assert " to +" not in table


def test_models_that_see_other_patches_are_not_compared(capsys):
    def result(patches):
        hits = np.arange(4) / 10 + patches / 100
        score = Score("relevance_auroc", 0.5, 4, 0.4, 0.6, 0.5, hits, np.arange(4))
        return Result("focus", "animals", "test", f"focus; {patches}×{patches} patches", [score])

    runs = [f"runs/{name}/checkpoints/best" for name in "abc"]
    show_results([("CLIP", runs[0], result(2)), ("CLIP", runs[1], result(5)), ("CLIP", runs[2], result(2))])
    table = capsys.readouterr().out
    rows = {name: line for line in table.splitlines() for name in "abc" if f"CLIP (runs/{name})" in line}
    assert " to +" in rows["c"]
    assert " to +" not in rows["b"]
    assert "CLIP (runs/b): focus; 5×5 patches." in table
    assert "they are not compared" in table


def test_json_holds_everything_and_prompt_is_in_the_protocol(plain_model, folder, tmp_path):
    lines, _ = call(
        plain_model, "--task", "focus", "--data", folder, "--prompt", "a photo of a {c}", "--json"
    )
    records = [json.loads(line) for line in lines.splitlines()]
    assert "relevance_auroc/layer 1 head 2" in {record["metric"] for record in records}
    assert all("text 'a photo of a {c}'" in record["protocol"] for record in records)


def test_results_with_another_prompt_are_not_written_over(plain_model, folder, tmp_path):
    output = tmp_path / "focus.jsonl"
    arguments = [plain_model, "--task", "focus", "--data", folder, "--output", output]
    call(*arguments)
    call(*arguments)
    before = output.read_bytes()
    with pytest.raises(InputError, match="would be lost"):
        call(*arguments, "--prompt", "a {c}")
    assert output.read_bytes() == before


def test_what_is_skipped_and_left_out_is_said(plain_model, tmp_path):
    samples = animals(4)
    samples[1]["png"] = b"nothing"
    samples[2]["mask.png"] = png(box_mask(0, 0, 32, 32))
    folder = write_masked(tmp_path / "set", samples)
    _, errors = call(plain_model, "--task", "focus", "--data", folder)
    broken, left = errors.splitlines()
    assert broken.startswith("diffclip: skipped 1 broken samples or shards: ")
    assert "s0000001" in broken
    assert left.startswith("diffclip: skipped 1 masks that tell nothing: ")
    assert "fills the model's crop" in left


def test_corrupted_pictures_are_another_set(plain_model, folder):
    lines, _ = call(plain_model, "--task", "focus", "--data", folder, "--corrupt", "noise:3", "--json")
    assert {json.loads(line)["dataset"] for line in lines.splitlines()} == {"animals+noise:3"}


def test_draws_are_done_once(plain_model, folder):
    table, _ = call(plain_model, "--task", "focus", "--data", folder, "--seeds", 2)
    assert table.count("focus: animals") == 2  # one of relevance, one of attention


def _without(extension):
    return [{key: value for key, value in sample.items() if key != extension} for sample in animals(3)]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        (_without("mask.png"), r"has an image and a mask \(\.mask\.png\): "),
        (_without("txt"), "has a text for its mask: "),
        (animals(1), "animals/test has a single picture"),
        (
            [sample | {"mask.png": png(box_mask(0, 0, 0, 0))} for sample in animals(3)],
            "has 0 pictures whose mask",
        ),
        ([sample | {"mask.png": png(noise(0, 32, 9)[..., 0])} for sample in animals(3)], "another shape"),
        ([sample | {"png": b"nothing"} for sample in animals(3)], "every image in .* is broken"),
    ],
)
def test_a_set_that_cannot_be_used_is_one_line(plain_model, tmp_path, samples, words):
    folder = write_masked(tmp_path / "animals", samples)
    with pytest.raises(InputError, match=words) as caught:
        call(plain_model, "--task", "focus", "--data", folder, "--output", tmp_path / "out.jsonl")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "a {c}"], "--prompt 'a {c}' is what focus asks about: add --task focus"),
        (["--prompt", " ", "--task", "focus"], "--prompt is empty"),
        (["--task", "focuss"], "did you mean 'focus'"),
        (["--task", "focus", "--split", "val"], "no split 'val'"),
    ],
)
def test_bad_arguments_are_one_line(plain_model, folder, arguments, words):
    with pytest.raises(InputError, match=words):
        call(plain_model, "--data", folder, *arguments)

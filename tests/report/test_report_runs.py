import json

import numpy as np
import pytest
from run_folders import SIZE, make_run

from diffclip.errors import InputError
from diffclip.evaluation.outcomes import ItemOutcomes, outcomes_file, write_outcomes
from diffclip.report.runs import read_run, variant_of_label
from diffclip.report.sources import read_outcomes_of, read_sources


def test_a_run_is_read_back(tmp_path):
    run = read_run(make_run(tmp_path / "run", "DiffCLIP-vision", seed=3, steps=40, level=0.5))
    assert (run.model, run.variant, run.init, run.seed) == (
        f"DiffCLIP-vision-{SIZE}",
        "DiffCLIP-vision",
        "matched",
        3,
    )
    assert run.steps["step"].tolist() == list(range(1, 41))
    assert run.steps["loss"][-1] == pytest.approx(1, abs=0.05)
    assert run.lambdas["visual"].shape == (40, 3)
    assert run.lambdas["text"].shape == (40, 0)
    assert run.last_lambdas["visual"][0] == pytest.approx(0.8 + 0.1 * np.sin(1))
    assert [row["score"] for row in run.validation] == [0.25, 0.5]
    assert run.best is not None
    assert run.best["epoch"] == 2
    assert run.minutes == pytest.approx(40 * 8 / 80 / 60)
    assert len(run.records) == 3
    assert run.skipped == 0


def test_the_model_of_a_run_without_results_comes_from_its_recipe(tmp_path):
    run = read_run(make_run(tmp_path / "run", "DiffCLIP-dynamic", evaluated=False))
    assert run.model == f"DiffCLIP-dynamic-{SIZE}"
    assert run.config is not None
    assert run.config.lambda_init == "dynamic"


def test_a_recipe_of_another_version_is_still_a_run(tmp_path):
    folder = make_run(tmp_path / "run", "CLIP", evaluated=False)
    (folder / "recipe.yaml").write_text("model: CLIP-ViT-X-99\nnovelty: 3\n")
    run = read_run(folder)
    assert (run.model, run.variant, run.config, run.seed) == ("CLIP-ViT-X-99", "CLIP", None, None)


def test_a_line_being_written_is_left_out(tmp_path):
    folder = make_run(tmp_path / "run", steps=10)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 11, "loss": 0.')
    run = read_run(folder)
    assert run.steps["step"][-1] == 10
    assert run.skipped == 1


def test_after_a_resume_the_later_of_two_steps_wins_and_stale_steps_go(tmp_path):
    folder = make_run(tmp_path / "run", steps=10)
    path = folder / "metrics.jsonl"
    again = [dict(json.loads(line), loss=7.0) for line in path.read_text().splitlines()[4:7]]
    path.write_text(path.read_text() + '{"step": 1' + "\n" + "".join(json.dumps(row) + "\n" for row in again))
    run = read_run(folder)
    # steps 8 to 10 and the validation after them were of the run before it was killed
    assert run.steps["step"].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert run.steps["loss"][4:].tolist() == [7, 7, 7]
    assert [row["step"] for row in run.validation] == [5]


@pytest.mark.parametrize(
    ("missing", "message"),
    [("recipe.yaml", "has no recipe.yaml"), ("metrics.jsonl", "has no metrics.jsonl")],
)
def test_what_is_missing_is_named(tmp_path, missing, message):
    folder = make_run(tmp_path / "run")
    (folder / missing).unlink()
    with pytest.raises(InputError, match=message):
        read_run(folder)


def test_a_run_without_a_whole_step_is_refused(tmp_path):
    folder = make_run(tmp_path / "run")
    (folder / "metrics.jsonl").write_text('{"step": 1, "lo')
    with pytest.raises(InputError, match="no complete step"):
        read_run(folder)
    with pytest.raises(InputError, match="no run folder"):
        read_run(tmp_path / "none")


@pytest.mark.parametrize("text", ["[1, 2", "just words"])
def test_a_broken_recipe_is_named(tmp_path, text):
    folder = make_run(tmp_path / "run")
    (folder / "recipe.yaml").write_text(text)
    with pytest.raises(InputError, match=r"recipe\.yaml"):
        read_run(folder)


@pytest.mark.parametrize(
    ("label", "variant"),
    [
        ("CLIP", "CLIP"),
        ("DiffCLIP-ViT-B-16", "DiffCLIP"),
        ("DiffCLIP-dynamic-ViT-B-16", "DiffCLIP-dynamic"),
        ("DiffCLIP-lambda0", "DiffCLIP-lambda0"),
        ("DiffCLIP-lambda0.2-v1x2x3p4-t1x2x3", "DiffCLIP-lambda0.2"),
        ("custom-v1x2x3p4-t1x2x3", "custom"),
    ],
)
def test_variant_of_label(label, variant):
    assert variant_of_label(label) == variant


def test_sources_are_found_below_a_folder_and_each_counts_once(tmp_path):
    first = make_run(tmp_path / "results" / "a" / "clip", "CLIP")
    make_run(tmp_path / "results" / "diff", "DiffCLIP")
    more = tmp_path / "results" / "more.jsonl"
    more.write_text((first / "results.jsonl").read_text())
    (tmp_path / "results" / "speed.jsonl").write_text('{"batch": 3}\n')
    runs, records = read_sources([tmp_path / "results", first, more])
    assert sorted(run.name for run in runs) == ["clip", "diff"]
    assert len(records) == 3


def test_outcomes_are_found_beside_records_and_in_runs(tmp_path):
    run = make_run(tmp_path / "results" / "clip", "CLIP")
    loose = tmp_path / "results" / "more.jsonl"
    loose.write_text((run / "results.jsonl").read_text())
    write_outcomes(outcomes_file(run / "results.jsonl"), {"of the run": ItemOutcomes(np.ones(2), None)})
    write_outcomes(outcomes_file(loose), {"of the file": ItemOutcomes(np.zeros(2), None)})
    assert set(read_outcomes_of([tmp_path / "results"])) == {"of the run", "of the file"}
    assert set(read_outcomes_of([loose])) == {"of the file"}
    outcomes_file(loose).unlink()
    assert read_outcomes_of([loose]) == {}
    with pytest.raises(InputError, match="none does not exist"):
        read_outcomes_of([tmp_path / "none"])


def test_sources_that_are_not_there_are_named(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="empty holds neither a run"):
        read_sources([tmp_path / "empty"])
    with pytest.raises(InputError, match="none does not exist"):
        read_sources([tmp_path / "none"])
    (tmp_path / "other.jsonl").write_text('{"batch": 3}\n')
    with pytest.raises(InputError, match="not a record"):
        read_sources([tmp_path / "other.jsonl"])

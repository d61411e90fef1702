import json
from itertools import pairwise

import numpy as np
import pytest
import yaml
from run_folders import make_run

from diffclip.errors import InputError
from diffclip.evaluation.outcomes import ItemOutcomes, key_of, outcomes_file, write_outcomes
from diffclip.evaluation.records import read_records, write_records
from diffclip.report.compare import compare
from diffclip.report.runs import read_run
from diffclip.report.save import MAX_BYTES, save_results
from diffclip.report.series import collect
from diffclip.report.sources import read_outcomes_of, read_sources


def test_what_is_saved_reads_as_the_same_runs_and_results(tmp_path):
    folders = [make_run(tmp_path / f"{m}-s{s}", m, s) for m in ("CLIP", "DiffCLIP") for s in range(3)]
    saved = save_results(folders, tmp_path / "saved")
    before = collect([read_run(folder) for folder in folders], [])
    after = collect(*read_sources([saved]))
    assert [series.label for series in after.series] == ["CLIP", "DiffCLIP"]
    assert [one.difference for one in compare(after)] == [one.difference for one in compare(before)]
    run = read_run(saved / "DiffCLIP-s1")
    assert run.recipe == read_run(folders[4]).recipe
    assert run.steps["step"].tolist() == list(range(1, 41))
    assert run.steps["loss"] == pytest.approx(read_run(folders[4]).steps["loss"], rel=1e-4)
    assert run.validation == read_run(folders[4]).validation
    assert {record.weights for record in read_records(saved / "records.jsonl") if record.seed == 1} == {
        "CLIP-s1/checkpoints/best",
        "DiffCLIP-s1/checkpoints/best",
    }


def test_a_long_run_is_thinned_to_its_budget_with_both_ends(tmp_path):
    saved = (
        save_results([make_run(tmp_path / "long", steps=2000)], tmp_path / "saved") / "long" / "metrics.jsonl"
    )
    assert MAX_BYTES / 2 < saved.stat().st_size <= MAX_BYTES
    steps = [json.loads(line)["step"] for line in saved.read_text().splitlines()]
    assert (steps[0], steps[-1]) == (1, 2000)
    assert len({b - a for a, b in pairwise(steps[:-1])}) == 1


def test_numbers_have_five_digits_and_nan_becomes_null(tmp_path):
    folder = make_run(tmp_path / "run", steps=3)
    path = folder / "metrics.jsonl"
    path.write_text(path.read_text() + '{"step": 4, "loss": NaN, "lr": 0.000123456789, "samples": 1234567}\n')
    saved = save_results([folder], tmp_path / "saved")
    last = json.loads((saved / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert (last["loss"], last["lr"], last["samples"]) == (None, 0.00012346, 1234567)


def test_paths_of_this_machine_are_not_saved(tmp_path, monkeypatch):
    folder = make_run(tmp_path / "run")
    recipe = yaml.safe_load((folder / "recipe.yaml").read_text())
    recipe["data"] = {"train": [str(tmp_path / "sets" / "a.tar")], "val": "sets/val"}
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    monkeypatch.chdir(tmp_path)
    save_results([folder], "saved")
    for path in (tmp_path / "saved").rglob("*"):
        assert path.is_dir() or str(tmp_path) not in path.read_text()
    assert read_run("saved/run").recipe["data"] == {"train": ["sets/a.tar"], "val": "sets/val"}


def test_records_of_no_run_keep_their_weights_but_not_this_machines_folders(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    records = read_run(make_run(tmp_path / "run")).records
    save_results([], "saved", [*records, records[0].model_copy(update={"weights": "hf-hub:some/model"})])
    assert [record.weights for record in read_records("saved/records.jsonl")] == [
        *["run/checkpoints/best"] * 3,
        "hf-hub:some/model",
    ]


def test_outcomes_are_kept_under_the_shortened_weights(tmp_path):
    folders = [make_run(tmp_path / f"{model}-s0", model) for model in ("CLIP", "DiffCLIP")]
    rng = np.random.default_rng(0)
    for folder in folders:
        own = read_records(folder / "results.jsonl")
        hits = {key_of(one): ItemOutcomes((rng.random(one.count) < 0.5) * 1.0, None) for one in own[:2]}
        own = [
            one.model_copy(update={"value": float(hits[key_of(one)].hits.mean())})
            if key_of(one) in hits
            else one
            for one in own
        ]
        write_records(folder / "results.jsonl", own)
        write_outcomes(outcomes_file(folder / "results.jsonl"), hits)
    loose = own[0].model_copy(update={"weights": "hf-hub:some/model", "seed": None})
    extra = {key_of(loose): ItemOutcomes(np.ones(3), None), "of no record": ItemOutcomes(np.ones(3), None)}
    saved = save_results(folders, tmp_path / "saved", [loose], extra)
    kept = read_outcomes_of([saved])
    assert set(kept) <= {key_of(one) for one in read_records(saved / "records.jsonl")}
    assert len(kept) == 2 * 2 + 1
    after = collect(*read_sources([saved]), kept)
    before = collect([read_run(folder) for folder in folders], [loose], read_outcomes_of(folders) | extra)
    assert [one.basis for one in compare(after)].count("items") >= 2
    assert [(one.basis, one.p, one.difference) for one in compare(after)] == [
        (one.basis, one.p, one.difference) for one in compare(before)
    ]
    save_results(folders, tmp_path / "saved again")
    (tmp_path / "CLIP-s0" / "results.outcomes.npz").unlink()
    save_results(folders[:1], tmp_path / "saved again")
    assert not (tmp_path / "saved again" / "records.outcomes.npz").exists()


def test_runs_of_one_name_and_no_runs_are_refused(tmp_path):
    folders = [make_run(tmp_path / side / "run") for side in ("a", "b")]
    with pytest.raises(InputError, match="two runs are called 'run'"):
        save_results(folders, tmp_path / "saved")
    with pytest.raises(InputError, match="nothing to save"):
        save_results([], tmp_path / "saved")
    assert not (tmp_path / "saved").exists()

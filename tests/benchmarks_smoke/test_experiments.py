"""benchmarks/experiments.py: compare the primary numbers of synthetic records with values by hand, and write pages."""

import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from statsmodels.formula.api import ols

from benchmarks import experiments as program
from diffclip.evaluation.records import Record, write_records
from diffclip.evaluation.results_file import ResultsFile
from diffclip.evaluation.scores import mean_score

SEEDS = range(6)


@pytest.fixture(scope="module")
def results(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    random = np.random.default_rng(0)
    lines = []
    for kind in ("shared", "independent"):
        for tokens, strength in ((16, 1.0), (64, 1.0), (64, 2.0)):
            for model in ("CLIP", "CLIP-half-heads", "DiffCLIP", "CLIP-gated"):
                line = {"kind": kind, "tokens": tokens, "strength": strength, "model": model}
                line["acc1"] = (0.7 + 0.02 * random.standard_normal(len(SEEDS))).tolist()
                line["snr_first"] = [5.0] * len(SEEDS)
                if model == "DiffCLIP":
                    line |= dict.fromkeys(program._WHY.values(), [0.5] * 6)
                lines.append(json.dumps(line) + "\n")
    (folder / "needle.jsonl").write_text("".join(lines))
    fields = {"weights": "", "task": "retrieval", "dataset": "captions", "split": "test", "count": 10}
    fields |= {"metric": "mean_recall", "low": None, "high": None, "protocol": ""}
    for count in program.DISTRACTORS:
        records = []
        arms = (("CLIP", -0.01, 0.01), ("DiffCLIP", -0.005, 0.01), ("CLIP-gated", -0.01, 0.3))
        for model, gain, noise in arms:
            values = [0.5 + gain * count + noise * random.random() for _ in SEEDS]
            records += [Record(model=model, seed=n, value=values[n], **fields) for n in SEEDS]
            for name in program.ZERO_SHOT:
                zero_shot = fields | {"task": "zero-shot", "dataset": name, "metric": "acc1"}
                records += [Record(model=model, seed=n, value=values[n], **zero_shot) for n in SEEDS]
            cost = fields | {"task": "cost", "metric": "parameters", "value": 3392193.0}
            records.append(Record(model=model, seed=0, **cost))
        if count:  # this arm has only its first run so far
            records.append(Record(model="CLIP-same-rate", seed=0, value=0.4, **fields))
        study = folder / "study_b" / f"k{count}"
        write_records(study / "results.jsonl", records)
        # with distractors both models have the common learning rate, without them only CLIP has it
        rates = {"CLIP": 2e-3, "DiffCLIP": 2e-3 if count else 1e-3}
        runs = [json.dumps({"group": "models", "arm": arm, "lr": lr}) + "\n" for arm, lr in rates.items()]
        (study / "runs.jsonl").write_text("".join(runs))
    return folder


def test_the_interaction_is_the_paired_change_of_the_difference(results: Path) -> None:
    values = program.clutter_values(results / "study_b")
    row = program.compare_clutter(values)[0].query("primary").iloc[0]
    wide = values.pivot_table(index="seed", columns=["model", "distractors"], values="value")
    change = (wide["DiffCLIP"][16] - wide["CLIP"][16]) - (wide["DiffCLIP"][0] - wide["CLIP"][0])
    assert row["difference"] == pytest.approx(change.mean())
    # the p-value does not depend on the other models
    assert row["p"] == pytest.approx(stats.ttest_1samp(change, 0).pvalue)
    assert row["p"] < 0.05


def test_runs_at_the_common_learning_rate_are_not_repeated(results: Path) -> None:
    values = program.clutter_values(results / "study_b")
    models = values.groupby("distractors")["model"].unique().map(set)
    assert models[16] == {"CLIP", "DiffCLIP", "CLIP-gated", *program.SAME_RATE}
    assert models[0] == {"CLIP", "DiffCLIP", "CLIP-gated", "CLIP-same-rate"}
    by_run = values[values["distractors"] == 16].set_index(["model", "seed"])["value"]
    assert by_run["CLIP-same-rate"].tolist() == [0.4, *by_run["CLIP"][1:]]
    seeds = program.compare_clutter(values)[1].set_index(["distractors", "model"])["seeds"]
    pairs = {(n, model) for n in program.DISTRACTORS for model in ("DiffCLIP", "CLIP-gated")}
    assert set(seeds.index) == pairs | {(n, "DiffCLIP-same-rate") for n in (4, 16)}
    assert seeds[16, "DiffCLIP-same-rate"] == len(SEEDS)


def _add_outcomes(
    file: Path, split: str, run: tuple[str, int], captions: np.ndarray, images: np.ndarray
) -> None:
    """Add results of a run with the outcomes of captions [images, 5] and of images to a file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    clusters = np.arange(len(images)).repeat(5)
    scores = [mean_score("image_retrieval_recall@5", captions.ravel(), None, clusters)]
    scores.append(mean_score("text_retrieval_recall@5", images, None))
    about = {"model": run[0], "seed": run[1], "weights": "weights", "task": "retrieval", "protocol": ""}
    ResultsFile(file).add(scores, **about, dataset="flickr8k", split=split)


def test_the_interval_combines_errors_over_images_and_seeds(monkeypatch, tmp_path: Path) -> None:
    random, runs = np.random.default_rng(0), tmp_path / "runs"
    pairs = [(model, seed) for seed in range(4) for model in ("CLIP", "DiffCLIP")]
    outcomes = {pair: (random.random((30, 5)), random.random(30)) for pair in pairs}
    for run, (captions, images) in outcomes.items():
        file = runs / "models" / f"{run[0]}-s{run[1]}" / "results.jsonl"
        _add_outcomes(file, "val[500:]", run, captions[:20], images[:20])
        _add_outcomes(runs / "other_half.jsonl", "val[:500]", run, captions[20:], images[20:])
    (runs / "models" / "CLIP-same-rate-s0").mkdir()
    options = ["--results", str(tmp_path), "--docs", str(tmp_path), "--runs", str(runs)]
    monkeypatch.setattr(sys, "argv", ["experiments", *options])
    program.main()
    by_split = json.loads((tmp_path / "study_a" / "over_images.json").read_text())
    assert [(row["split"], row["images"]) for row in by_split[:2]] == [("val[500:]", 20), ("val[:500]", 10)]
    combined = by_split[2]
    page = (tmp_path / "results" / "study_a_images.md").read_text()
    assert "| DiffCLIP − CLIP | retrieval | flickr8k | val[500:] and val[:500] | 4 | 30 |" in page
    assert (combined["seeds"], combined["images"]) == (4, 30)
    recalls = {run: (captions.mean(1) + images) / 2 for run, (captions, images) in outcomes.items()}
    gains = [recalls["DiffCLIP", seed] - recalls["CLIP", seed] for seed in range(4)]
    errors = [stats.sem(np.mean(gains, axis)) for axis in (1, 0)]
    assert [combined["error_over_seeds"], combined["error_over_images"]] == pytest.approx(errors, abs=1e-6)
    table = pd.DataFrame(np.stack(gains)).stack().rename_axis(["seed", "image"]).rename("gain").reset_index()
    residual = ols("gain ~ C(seed) + C(image)", table).fit().mse_resid / len(table)  # part of both errors
    mean, margin = np.mean(gains), 1.96 * np.sqrt(errors[0] ** 2 + errors[1] ** 2 - residual)
    interval = [combined["low"], combined["difference"], combined["high"]]
    assert interval == pytest.approx([mean - margin, mean, mean + margin], abs=1e-5)


def test_the_pages_and_figures_are_written(monkeypatch, results: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "--results", str(results), "--docs", str(tmp_path)])
    program.main()
    for name in ("needle", "study_b"):
        page = (tmp_path / "results" / f"{name}.md").read_text()
        assert page.count("DiffCLIP − CLIP") >= 2
        assert "nan" not in page
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5000
    assert "3,392,193" in page
    assert "Primary endpoint, the change of the advantage from K = 0 to K = 16: DiffCLIP − CLIP" in page
    assert "on 10 held-out scenes" in page
    assert page.count("| colours |") == 2

"""benchmarks/experiments.py: the primary numbers of made records, by hand, and pages with figures."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from benchmarks import experiments as program
from diffclip.evaluation.records import Record, write_records

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
                if model == "DiffCLIP":
                    line |= dict.fromkeys(
                        ("map_correlation", "lambda", "snr_first", "snr_combined"), [0.5] * 6
                    )
                lines.append(json.dumps(line) + "\n")
    (folder / "needle.jsonl").write_text("".join(lines))
    fields = {"weights": "", "task": "retrieval", "dataset": "captions", "split": "test", "count": 10}
    fields |= {"metric": "mean_recall", "low": None, "high": None, "protocol": ""}
    for count in (0, 16):  # 4 comes last
        records = []
        for model, gain in (("CLIP", -0.01), ("DiffCLIP", -0.005)):
            values = [0.5 + gain * count + 0.01 * random.random() for _ in SEEDS]
            records += [Record(model=model, seed=n, value=values[n], **fields) for n in SEEDS]
            cost = fields | {"task": "cost", "metric": "parameters", "value": 3392193.0}
            records.append(Record(model=model, seed=0, **cost))
        study = folder / "study_b" / f"k{count}"
        write_records(study / "results.jsonl", records)
        # at K = 16 the rate of both models is the one for all, at K = 0 that of CLIP
        rates = {"CLIP": 2e-3, "DiffCLIP": 2e-3 if count else 1e-3}
        runs = [json.dumps({"group": "models", "arm": arm, "lr": lr}) + "\n" for arm, lr in rates.items()]
        (study / "runs.jsonl").write_text("".join(runs))
    return folder


def test_the_interaction_is_the_paired_change_of_the_difference(results: Path) -> None:
    values = program.clutter_values(results / "study_b")
    found = program.compare_clutter(values)[0].iloc[0]
    wide = values.pivot_table(index="seed", columns=["model", "distractors"], values="value")
    change = (wide["DiffCLIP"][16] - wide["CLIP"][16]) - (wide["DiffCLIP"][0] - wide["CLIP"][0])
    assert found["difference"] == pytest.approx(change.mean())
    # with two models the pooled residual is that of the paired test
    assert found["p"] == pytest.approx(stats.ttest_1samp(change, 0).pvalue)
    assert found["primary"]
    assert found["verdict"] == "better"


def test_runs_at_the_one_rate_for_all_are_not_made_twice(results: Path) -> None:
    values = program.clutter_values(results / "study_b")
    made = values.groupby("distractors")["model"].unique().map(set)
    assert made[16] == {"CLIP", "DiffCLIP", *program.SAME_RATE}
    assert made[0] == {"CLIP", "DiffCLIP", "CLIP-same-rate"}
    each = program.compare_clutter(values)[1].set_index(["distractors", "model"])["difference"]
    assert set(each.index) == {(0, "DiffCLIP"), (16, "DiffCLIP"), (16, "DiffCLIP-same-rate")}
    assert each[16, "DiffCLIP"] == each[16, "DiffCLIP-same-rate"]


def test_the_pages_and_figures_are_written(monkeypatch, results: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "argv", ["experiments", "--results", str(results), "--docs", str(tmp_path)])
    program.main()
    for name in ("needle", "study_b"):
        page = (tmp_path / "results" / f"{name}.md").read_text()
        assert page.count("DiffCLIP − CLIP") >= 2
        assert "nan" not in page
        assert (tmp_path / "figures" / f"{name}.png").stat().st_size > 5000
    assert "3,392,193" in page

"""The page of mechanisms: a row for every registered kind, with the verdicts of the experiments."""

from pathlib import Path

import pytest
import yaml
from made_records import make_record
from tiny import SIZES

from benchmarks import mechanisms
from diffclip.attention import ATTENTION_LAYERS
from diffclip.config import variant_config
from diffclip.evaluation.family import Family
from diffclip.evaluation.records import records_table
from diffclip.evaluation.verdicts import compute_verdicts, write_verdicts


def test_the_page_has_every_kind_with_its_verdicts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(mechanisms, "named_config", lambda name: variant_config(name.split("-ViT")[0], SIZES))
    study = tmp_path / "experiments" / "x"
    study.mkdir(parents=True)
    contrasts = [["DiffCLIP", "CLIP"], ["DiffCLIP", "CLIP-gated"]]
    recall = {"task": "retrieval", "dataset": "flickr8k", "metric": "mean_recall"}
    spec = {"contrasts": contrasts, "endpoints": {"secondary": [recall]}}
    (study / "spec.yaml").write_text(yaml.safe_dump(spec))
    (study / "results.csv").write_text("made")
    values = {"CLIP": (0.1, 0.11, 0.12), "DiffCLIP": (0.3, 0.31, 0.32), "CLIP-gated": (0.5, 0.51, 0.52)}
    frame = records_table(
        make_record({"model": model, "seed": seed, "weights": model}, *recall.values(), value)
        for model, runs in values.items()
        for seed, value in enumerate(runs)
    )
    write_verdicts(study, compute_verdicts(frame, Family(**spec)))
    (tmp_path / "docs").mkdir()
    mechanisms.write_page({"CLIP": 1.0, "DiffCLIP": 1.125})
    lines = {
        line.split("`")[1]: line
        for line in (tmp_path / mechanisms.PAGE).read_text().splitlines()
        if "` (" in line
    }
    assert lines.keys() == ATTENTION_LAYERS.keys()
    assert next(iter(lines)) == "softmax"
    assert "| 1.12 | better 1 |" in lines["differential"]
    assert "arXiv:2510.06949" in lines["differential-grouped"]
    assert "no comparison yet" in lines["gated-open"]
